"""Where checkpoints are kept beside the disk of the worker that wrote them, so that a run goes on on another machine.

A folder that the machines share (`file:///mnt/checkpoints`) or a bucket (`s3://bucket/prefix`; credentials and address from the
variables that every S3 program reads), through fsspec. A checkpoint has the name there that it has below a data directory. What
comes back is compared with the SHA-256 of the run's record, so a cut or foreign file is no danger.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO, Any

# so that a bucket that does not answer is noticed within seconds
TIMEOUTS = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}


class StoreError(Exception):
    """The store refuses or does not answer; the text is one line."""


class NotStored(StoreError):
    """There is no such checkpoint in the store."""


class CheckpointStore:
    """The store behind a URL of the settings. Raises ValueError where the package for such URLs is not installed."""

    def __init__(self, url: str) -> None:
        import fsspec  # with a store only: nobody else pays for it

        self._is_local = url.startswith("file:")
        try:
            options = {} if self._is_local else {"skip_instance_cache": True, "config_kwargs": TIMEOUTS}
            self._files, root = fsspec.url_to_fs(url, **options)  # type: ignore[no-untyped-call]
        except ImportError:
            raise ValueError("a checkpoint store in a bucket needs the package s3fs: pip install 'stablessm[s3]'") from None
        self._root = str(root).rstrip("/")

    def put(self, file: Path, path: str) -> None:
        """Keep `file` under the name `path`, in place of what was there; whole or not at all."""
        target = self._at(path)
        if not self._is_local:  # a bucket shows whole objects only
            self._do("write", path, self._files.put_file, str(file), target)
            return
        draft = f"{target}.{os.getpid()}.part"
        self._do("write", path, os.makedirs, os.path.dirname(target), exist_ok=True)
        self._do("write", path, self._files.put_file, str(file), draft)
        self._do("write", path, os.replace, draft, target)

    def fetch(self, path: str, target: Path, sha256: str) -> None:
        """Bring the checkpoint `path` to the file `target`, which appears once it is whole. Raises NotStored, StoreError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}.fetched")
        try:
            self._do("read", path, self._files.get_file, self._at(path), str(draft))
            with draft.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
                os.fsync(content.fileno())
            if found != sha256:
                raise StoreError(f"{path} in the checkpoint store has SHA-256 {found}, recorded is {sha256}")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def open(self, path: str) -> IO[bytes]:
        """The bytes of a checkpoint, to be closed by the caller. Raises NotStored, StoreError."""
        opened: IO[bytes] = self._do("read", path, self._files.open, self._at(path), "rb")
        return opened

    def stored(self, run_id: int) -> list[str]:
        """Names of everything kept of a run."""
        self._files.invalidate_cache()
        try:
            found = self._do("list", f"run {run_id}", self._files.find, self._at(f"runs/{run_id}"))
        except NotStored:
            return []
        return [str(name).removeprefix(self._root).lstrip("/") for name in found]

    def remove(self, paths: Iterable[str]) -> None:
        """Remove checkpoints; those that are gone already do not matter."""
        for path in paths:
            try:
                self._do("remove", path, self._files.rm_file, self._at(path))
            except NotStored:
                continue

    def remove_run(self, run_id: int) -> None:
        """Remove everything kept of a run."""
        self.remove(self.stored(run_id))

    def _at(self, path: str) -> str:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or relative.parts[:1] != ("runs",):
            raise StoreError(f"{path!r} is no name of a checkpoint")
        return f"{self._root}/{relative}"

    def _do(self, verb: str, what: str, work: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return work(*arguments, **options)
        except FileNotFoundError:
            raise NotStored(f"{what} is not in the checkpoint store") from None
        except Exception as error:  # each file system has error classes of its own
            text = " ".join(str(error).split())[:300]
            raise StoreError(f"cannot {verb} {what} in the checkpoint store: {type(error).__name__}: {text}") from error
