"""Configuration of `char_lm`, and the list of text files that it can train on. Importing this module reads no files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.data.files import DataError, locate
from stablessm_core.spec.data.text import NotText, count_characters, split_point
from stablessm_core.spec.section import FILE_PATTERN, RelativePath
from stablessm_core.spec.task import TaskSection

MAX_LISTED = 1000  # maximum number of files that a worker reports
FULL_CHECK_BYTES = 1 << 26  # maximum size of a file that a worker checks, in bytes; larger files are listed without being read


class CharLm(TaskSection):
    """Predict the next character of a text file in the data directory (plain, .gz or .xz). The last 10 % is for evaluation."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.char_lm:CharLmTask"
    order: ClassVar[float] = 12
    data_field: ClassVar[str] = "file"

    name: Literal["char_lm"]
    file: RelativePath = Field("tinyshakespeare/input.txt.xz", description="Path of the text file in the data directory.")
    length: int = Field(256, ge=1, le=131_072, description="Context length in characters.")

    def sequence_length(self) -> int:
        return self.length

    def data_needed(self) -> str:
        return self.file

    def check_data(self, data_root: Path) -> None:
        path = locate(data_root, self.file)
        split_point(path, count_characters(path), self.length)

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:
        """Every text file by its path in the data directory. Files that are not text are omitted."""
        found = {}
        for file in _files(data_root, taken):
            try:
                path = locate(data_root, file)
                if path.stat().st_size <= FULL_CHECK_BYTES:
                    count_characters(path)
            except NotText:
                continue
            except DataError as error:
                found[file] = str(error)
            else:
                found[file] = "ok"
        return found


def _files(data_root: Path, taken: Collection[str]) -> list[str]:
    """Regular files in `data_root` that `task.file` can name, except hidden files and the files of other tasks."""
    found: list[str] = []
    for folder, folders, files in os.walk(data_root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            relative = Path(folder, name).relative_to(data_root).as_posix()
            if relative not in taken and re.match(FILE_PATTERN, relative):
                found.append(relative)
        if len(found) >= MAX_LISTED:
            break
    return found[:MAX_LISTED]
