"""What an importer is: it claims the files that its tool wrote, and reads the runs in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from server.importing import sqlite
from server.importing.found_run import Advance, FoundRun

HEAD_BYTES = 4096
TRAINING = ("train", "training")
GROUPS = {
    "eval": "eval", "evaluation": "eval", "val": "eval", "valid": "eval", "validation": "eval", "dev": "eval", "test": "test",
    "testing": "test",
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A file that may be imported. root: the folder that is imported, or the folder of the file."""

    path: Path
    root: Path

    @cached_property
    def head(self) -> bytes:
        """The beginning of the file."""
        with self.path.open("rb") as file:
            return file.read(HEAD_BYTES)

    @cached_property
    def tables(self) -> dict[str, set[str]]:
        """The columns of each table of an SQLite database; none for another file."""
        return sqlite.columns(self.path) if self.head.startswith(sqlite.MAGIC) else {}


@dataclass(frozen=True)
class Claimed:
    """Files that are read together. step: the name of the column of steps in tables, as the user gave it. growing: True if a
    program may still write the files, so that an unfinished line at the end is no damage."""

    paths: list[Path]
    root: Path
    step: str | None
    growing: bool = False

    @property
    def path(self) -> Path:
        """The first file."""
        return self.paths[0]

    @property
    def name(self) -> str:
        """The path of the first file below the root, without the ending of its name."""
        return self.path.relative_to(self.root).with_suffix("").as_posix()


@dataclass(frozen=True)
class Importer:
    """Reads the files of one kind.

    what: the kind, for a sentence that lists what can be imported. claim: a key, which is the same for files that are one source;
    None for a file of another kind; raises Unreadable for a file of this kind that cannot be read. read: raises Unreadable and
    OSError. whole_folder: True if the files beside and below a claimed file belong to it.
    """

    what: str
    claim: Callable[[Candidate], Hashable | None]
    read: Callable[[Claimed, Advance], Iterator[FoundRun]]
    whole_folder: bool = False


@dataclass(frozen=True)
class Source:
    """Runs that can be read. what: where they lie. files: that are read. size: bytes, for the progress. read: raises Unreadable
    and OSError."""

    what: Path
    files: list[Path]
    size: int
    read: Callable[[Advance], Iterator[FoundRun]]


def group_of(name: str, parts: int = 2) -> str:
    """What the loss of a run with this path belongs to: "eval" or "test" if one of its last parts is called so, and none behind
    it is called train."""
    for part in reversed(name.lower().split("/")[-parts:]):
        if part in TRAINING:
            return ""
        if (last := re.split("[_-]", part)[-1]) in GROUPS and (last == part or GROUPS[last] == "eval"):
            return GROUPS[last]
    return ""
