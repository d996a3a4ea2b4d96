"""Configuration of `char_lm`, and which text files it can be trained on. Reads them only when asked."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.section import FILE_PATTERN, RelativePath
from stablessm_core.tasks.section import TaskSection

MAX_LISTED = 1000  # files offered
FULL_CHECK_BYTES = 1 << 26  # a larger file is listed by its name alone and read when it is asked for


class CharLm(TaskSection):
    """Predict the next character of a text file in the data directory (plain, .gz or .xz; last 10 % is for evaluation)."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.char_lm.data:CharLmTask"
    data_field: ClassVar[str] = "file"

    name: Literal["char_lm"]
    file: RelativePath = Field("tinyshakespeare/input.txt.xz", description="Path relative to the data directory.")
    length: int = Field(256, ge=1, le=131_072, description="Context length in characters.")

    def sequence_length(self) -> int:
        return self.length

    def data_needed(self) -> str:
        return self.file

    def check_data(self, data_root: Path) -> None:
        from stablessm_core.tasks.char_lm.text import count_characters, split_point
        from stablessm_core.tasks.files import locate

        path = locate(data_root, self.file)
        split_point(path, count_characters(path), self.length)

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:
        """Every text file by its path in the data directory. Files that hold no text are left out."""
        from stablessm_core.tasks.char_lm.text import NotText, count_characters
        from stablessm_core.tasks.files import DataError, locate

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
    """Regular files below data_root that `task.file` can name, without hidden ones and those of other tasks."""
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
