"""A shared store for copies of checkpoints, so that a run can resume on another machine.

The store is a shared folder (`file:///mnt/checkpoints`) or a bucket (`s3://bucket/prefix`, with credentials and address from the
usual S3 variables), accessed through fsspec. A checkpoint has the same path in the store as in a data directory. The
SHA-256 of a fetched file is compared with the SHA-256 in the database, so an incomplete or wrong file is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import IO, Any

# short time limits (in seconds) and few attempts, so that an unreachable bucket is reported soon
TIMEOUTS = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}


class StoreError(Exception):
    """The store refused a request or did not answer. The message is one line."""


class NotStored(StoreError):
    """The store does not have the checkpoint."""


class CheckpointStore:
    """The checkpoint store at this URL. Raises ValueError if the package for this kind of URL is not installed."""

    def __init__(self, url: str) -> None:
        import fsspec  # imported late to save start-up time: only installations with a store need fsspec

        self._is_local = url.startswith("file:")
        try:
            options = {} if self._is_local else {"skip_instance_cache": True, "config_kwargs": TIMEOUTS}
            self._files, root = fsspec.url_to_fs(url, **options)  # type: ignore[no-untyped-call]
        except ImportError:
            raise ValueError("checkpoints in a bucket need the package s3fs: pip install 'stablessm-service[s3]'") from None
        self._root = str(root).rstrip("/")

    def put(self, file: Path, path: str) -> None:
        """Store `file` as `path` atomically. An existing file is replaced."""
        target = self._at(path)
        if not self._is_local:  # a bucket writes objects atomically
            self._do("write", path, self._files.put_file, str(file), target)
            return
        draft = f"{target}.{os.getpid()}.part"
        self._do("write", path, os.makedirs, os.path.dirname(target), exist_ok=True)
        self._do("write", path, self._files.put_file, str(file), draft)
        self._do("write", path, os.replace, draft, target)

    def fetch(self, path: str, target: Path, sha256: str) -> None:
        """Copy the checkpoint `path` to the file `target`, which appears only when the copy is complete. Raises NotStored,
        StoreError."""
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}.fetched")
        try:
            self._do("read", path, self._files.get_file, self._at(path), str(draft))
            with draft.open("rb") as content:
                found = hashlib.file_digest(content, "sha256").hexdigest()
                os.fsync(content.fileno())
            if found != sha256:
                raise StoreError(f"{path} in the checkpoint store has SHA-256 {found}, expected {sha256}")
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def open(self, path: str) -> IO[bytes]:
        """Open a checkpoint for reading. The caller must close it. Raises NotStored, StoreError."""
        opened: IO[bytes] = self._do("read", path, self._files.open, self._at(path), "rb")
        return opened

    def stored(self, run_id: int) -> list[str]:
        """The paths of all stored files of a run."""
        self._files.invalidate_cache()
        try:
            found = self._do("list", f"run {run_id}", self._files.find, self._at(f"runs/{run_id}"))
        except NotStored:
            return []
        return [str(name).removeprefix(self._root).lstrip("/") for name in found]

    def sizes(self) -> dict[str, int]:
        """The size of every stored file in bytes, keyed by the file's path. Raises StoreError."""
        if self._is_local and not os.path.isdir(self._root):
            raise StoreError(f"the folder {self._root} of the checkpoint store does not exist; is the shared disk mounted?")
        self._files.invalidate_cache()
        try:
            found = self._do("list", "runs", self._files.find, f"{self._root}/runs", detail=True)
        except NotStored:
            return {}
        return {str(name).removeprefix(self._root).lstrip("/"): int(info["size"]) for name, info in found.items()}

    def remove(self, paths: Iterable[str]) -> None:
        """Remove checkpoints. Paths that are not in the store are ignored."""
        for path in paths:
            try:
                self._do("remove", path, self._files.rm_file, self._at(path))
            except NotStored:
                continue

    def remove_run(self, run_id: int) -> None:
        """Remove all stored files of a run."""
        self.remove(self.stored(run_id))

    def _at(self, path: str) -> str:
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts or relative.parts[:1] != ("runs",):
            raise StoreError(f"{path!r} is not the path of a checkpoint")
        return f"{self._root}/{relative}"

    def _do(self, verb: str, what: str, work: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return work(*arguments, **options)
        except FileNotFoundError:
            raise NotStored(f"{what} is not in the checkpoint store") from None
        except Exception as error:  # each file system of fsspec has its own error classes
            text = " ".join(str(error).split())[:300]
            raise StoreError(f"cannot {verb} {what} in the checkpoint store: {type(error).__name__}: {text}") from error
