"""Finds what can be imported among files, by their content. A new importer is one file and one entry in IMPORTERS."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from pathlib import Path

from server.importing import (
    delimited,
    json_lines,
    mlflow,
    parquet,
    tensorboard,
    tensorboard_csv,
    trackio,
    trainer_state,
    wandb,
    wandb_charts,
    wandb_history,
)
from server.importing.found_run import Unreadable
from server.importing.importer import Candidate, Claimed, Importer, Source

IMPORTERS: tuple[Importer, ...] = (  # the first one that claims a file reads it
    tensorboard.IMPORTER, wandb.IMPORTER, *mlflow.IMPORTERS, trackio.IMPORTER, parquet.IMPORTER, trainer_state.IMPORTER,
    wandb_history.IMPORTER, json_lines.IMPORTER, wandb_charts.IMPORTER, tensorboard_csv.IMPORTER, delimited.IMPORTER,
)  # fmt: skip
RECOGNIZED = ", ".join(importer.what for importer in IMPORTERS)
# a file whose name promises numbers is never passed over without a reason
PROMISING = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".wandb")


def find_sources(
    path: Path, step: str | None, complain: Callable[[str], None], pass_over: Callable[[Path], None] = lambda _: None,
    *, growing: bool = False,
) -> list[Source]:  # fmt: skip
    """The sources in a file, or in a folder and the folders in it.

    step: the name of the column of steps in tables. complain: receives a sentence for each file in a folder that cannot be read.
    pass_over: receives each file in a folder that is of no known kind. growing: True if programs may still write the files.
    Raises Unreadable for a file that is not recognized, and for a folder without sources about which nothing was complained.
    """
    found = _Found(path if path.is_dir() else path.parent, step, growing=growing)
    if not path.is_dir():
        if found.add(path) is None:
            raise Unreadable(f"{path} is not recognized; what can be imported: {RECOGNIZED}")
        return found.sources()
    refused = 0
    for file in _files(path, found, complain):
        try:
            if found.add(file) is None:
                if file.suffix.lower() in PROMISING:
                    raise Unreadable(f"{file} is not recognized")
                pass_over(file)
        except (Unreadable, OSError) as error:
            refused += 1
            complain(str(error) if isinstance(error, Unreadable) else f"{file}: {error.strerror or error}")
    if not (sources := found.sources()) and not refused:
        raise Unreadable(f"nothing in {path} is recognized; what can be imported: {RECOGNIZED}")
    return sources


def _files(path: Path, found: _Found, complain: Callable[[str], None]) -> Iterator[Path]:
    """The files below the path. The other files in a folder that one source fills are left out."""
    for folder, folders, files in os.walk(path, onerror=lambda error: complain(f"{error.filename}: {error.strerror}")):
        folders.sort()
        for file in [Path(folder, name) for name in sorted(files)]:
            if file.is_file() and Path(folder) not in found.filled:
                yield file
        if Path(folder) in found.filled:
            folders.clear()


class _Found:
    """The recognized files, by importer and key. filled: the folders that one source fills."""

    def __init__(self, root: Path, step: str | None, *, growing: bool) -> None:
        self._root, self._step, self._growing = root, step, growing
        self._claimed: dict[tuple[int, Hashable], list[Path]] = {}
        self.filled: set[Path] = set()

    def add(self, path: Path) -> Importer | None:
        """The importer that reads the file; None if it is of no known kind. Raises Unreadable, and OSError."""
        candidate = Candidate(path, self._root)
        for number, importer in enumerate(IMPORTERS):
            if (key := importer.claim(candidate)) is not None:
                self._claimed.setdefault((number, key), []).append(path)
                if importer.whole_folder:
                    self.filled.add(path.parent)
                return importer
        return None

    def sources(self) -> list[Source]:
        """All sources, in the order of their paths."""
        found = []
        for (number, key), paths in self._claimed.items():
            what = key if isinstance(key, Path) else paths[0]
            claimed = Claimed(paths, self._root, self._step, self._growing)
            found.append(Source(what, paths, _size(what, paths), partial(IMPORTERS[number].read, claimed)))
        return sorted(found, key=lambda source: source.what)


def _size(what: Path, paths: list[Path]) -> int:
    """Bytes of the files; of the folder, if one source fills it."""
    files = [one for one in what.rglob("*") if one.is_file()] if what.is_dir() and paths[0].name == "meta.yaml" else paths
    return sum(path.stat().st_size for path in files)
