"""Finds what can be imported among files, by their content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from server.importing import mlflow, sqlite, tables, tensorboard, trackio, wandb
from server.importing.found_run import Advance, FoundRun, Unreadable

HEAD_BYTES = 4096
RECOGNIZED = (
    "event files of TensorBoard, offline files of W&B (run-*.wandb), MLflow's SQLite databases and run folders, trackio's SQLite "
    "databases, CSV files with a line of names above lines of numbers, Parquet files"
)


@dataclass(frozen=True)
class Source:
    """Runs that can be read. what: where they lie. size: bytes, for the progress. read: raises Unreadable and OSError."""

    what: Path
    size: int
    read: Callable[[Advance], Iterator[FoundRun]]


def find_sources(path: Path, step: str | None, complain: Callable[[str], None]) -> list[Source]:
    """The sources in a file, or in a folder and the folders in it.

    step: the name of the column of steps in tables. complain: receives a sentence for each file in a folder that cannot be read.
    Raises Unreadable for a file that is not recognized, and for a folder without sources.
    """
    found = _Found(path if path.is_dir() else path.parent, step)
    if not path.is_dir():
        if not found.add(path):
            raise Unreadable(f"{path} is not recognized; what can be imported: {RECOGNIZED}")
        return found.sources()
    for folder, folders, files in os.walk(path, onerror=lambda error: complain(f"{error.filename}: {error.strerror}")):
        folders.sort()
        for file in [Path(folder, name) for name in sorted(files)]:
            if not file.is_file():
                continue
            try:
                found.add(file)
            except OSError as error:
                complain(f"{file}: {error.strerror or error}")
        if found.runs_of_mlflow and found.runs_of_mlflow[-1].parent == Path(folder):
            folders.clear()  # the other files of the run, and its artifacts
    if not (sources := found.sources()):
        raise Unreadable(f"nothing in {path} is recognized; what can be imported: {RECOGNIZED}")
    return sources


class _Found:
    """The recognized files, by the tool that wrote them. names of runs are paths below `root`."""

    def __init__(self, root: Path, step: str | None) -> None:
        self._root, self._step = root, step
        self._events: dict[Path, list[Path]] = {}  # by folder
        self._logs: dict[str, list[Path]] = {}  # of W&B, by run
        self.runs_of_mlflow: list[Path] = []
        self._others: list[Source] = []

    def add(self, path: Path) -> bool:
        """True if the file is recognized. Raises OSError if it cannot be read."""
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        if wandb.recognizes(head):
            self._logs.setdefault(wandb.identity_of(path), []).append(path)
        elif head.startswith(sqlite.MAGIC):
            return self._add_database(path)
        elif tables.recognizes_parquet(head):
            self._add(path, lambda advance: iter([tables.read_parquet(path, self._name(path), self._step, advance)]))
        elif mlflow.recognizes_run(head):
            self.runs_of_mlflow.append(path)
        elif tensorboard.recognizes(head):
            self._events.setdefault(path.parent, []).append(path)
        elif (delimiter := tables.delimiter_of(head)) is not None:
            self._add(path, lambda advance: iter([tables.read_csv(path, self._name(path), delimiter, self._step, advance)]))
        else:
            return False
        return True

    def sources(self) -> list[Source]:
        """All sources, in the order of their paths."""
        found = list(self._others)
        for folder, paths in self._events.items():
            name = folder.resolve().name if folder == self._root else folder.relative_to(self._root).as_posix()
            found.append(_source(folder, paths, partial(_events, paths, name)))
        for paths in self._logs.values():
            found.append(_source(paths[0], paths, partial(_logs, paths)))
        for meta in self.runs_of_mlflow:
            inside = [one for one in (meta.parent / "metrics").rglob("*") if one.is_file()]
            found.append(_source(meta.parent, inside, partial(_folder, meta)))
        return sorted(found, key=lambda source: source.what)

    def _add_database(self, path: Path) -> bool:
        columns = sqlite.columns(path)
        if mlflow.recognizes_database(columns):
            self._add(path, lambda advance: mlflow.read_database(path, advance))
        elif trackio.recognizes_database(columns):
            self._add(path, lambda advance: trackio.read_database(path, advance))
        else:
            return False
        return True

    def _add(self, path: Path, read: Callable[[Advance], Iterator[FoundRun]]) -> None:
        self._others.append(_source(path, [path], read))

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).with_suffix("").as_posix()


def _source(what: Path, paths: list[Path], read: Callable[[Advance], Iterator[FoundRun]]) -> Source:
    return Source(what, sum(path.stat().st_size for path in paths), read)


def _events(paths: list[Path], name: str, advance: Advance) -> Iterator[FoundRun]:
    yield tensorboard.read(paths, name, advance)


def _folder(meta: Path, advance: Advance) -> Iterator[FoundRun]:
    yield mlflow.read_folder(meta, advance)


def _logs(paths: list[Path], advance: Advance) -> Iterator[FoundRun]:
    """The run in these files of W&B: the first one, and those of later processes that resumed it."""
    first, *later = (wandb.read(path, advance) for path in sorted(paths))
    for run in later:
        first.continue_with(run)
    yield first
