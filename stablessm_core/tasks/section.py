"""What a task says of itself without torch: its part of the configuration, its length, the data it needs, and a check of it.

Server and worker both read this. The part that loads data and makes batches is named by `trained_by`; only workers import it.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict

from stablessm_core.section import Section


class TaskSection(Section):
    """Base of every task's section of the configuration. A subclass sets `name: Literal["..."]` and adds its options.

    trained_by: "module:name" of a class or function that gives the `stablessm_core.tasks.base.Task` for (section, data
    directory). data_field: the option that decides which data is used, for error messages. own_files: files in the data
    directory that belong to this task and are not offered to others.
    """

    model_config = ConfigDict(defer_build=True)  # each is built once, inside RunConfig

    name: str
    trained_by: ClassVar[str]
    data_field: ClassVar[str] = "name"
    own_files: ClassVar[frozenset[str]] = frozenset()

    def sequence_length(self) -> int:
        """Steps of one sequence: what the model sees, and what the limits of the configuration count with."""
        raise NotImplementedError(f"{type(self).__name__} does not define sequence_length()")

    def data_needed(self) -> str:
        """What a worker must have on disk, spelled as `available_data` reports it; "" for nothing."""
        return ""

    def check_data(self, data_root: Path) -> None:
        """Raises DataError with path and reason if the data in `data_root` is missing, damaged or too short."""

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - for subclasses
        """What a worker reports of this task's data: "ok" or what is wrong, by name. `taken`: the own files of all tasks."""
        return {}
