"""The half of a task that does not need torch: its options, its sequence length, the data it needs, and a check of that data.

The server and the workers import this half. `trained_by` names the torch half, which loads data and makes batches. Only workers
import the torch half.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict

from stablessm_core.spec.data.files import DataError
from stablessm_core.spec.section import Section

TaskKind = Literal["regression", "classification", "next_token"]


class TaskSection(Section):
    """Base class of a task's section of the configuration. A subclass sets `name: Literal["..."]` and adds its options.

    trained_by: "module:name" of a class or function that returns the `stablessm_core.tasks.base.Task` for (section, data
    directory).
    order: the task's position in lists and forms. Tasks without an order come last, sorted by name.
    data_field: the option that chooses the data; error messages about the data name this option.
    has_epochs: True if the task has a fixed training set, and an epoch visits each example once.
    own_files: files in the data directory that only this task reads. Tasks that can read any text file do not list these files.
    """

    model_config = ConfigDict(defer_build=True)  # pydantic builds each section once, inside RunConfig

    name: str
    trained_by: ClassVar[str]
    order: ClassVar[float] = math.inf
    data_field: ClassVar[str] = "name"
    has_epochs: ClassVar[bool] = False
    own_files: ClassVar[frozenset[str]] = frozenset()

    def sequence_length(self) -> int:
        """The number of steps in one sequence that the model reads. The limits of the configuration depend on this number."""
        raise NotImplementedError(f"{type(self).__name__} does not define sequence_length()")

    def chance_loss(self) -> float | None:
        """The training loss of a model that knows which answers are possible, but has learnt nothing from the inputs; None if no
        simple number is known. The unit is that of the loss: mean squared error, or nats."""
        return None

    def memory_kernel(self, lags: int) -> list[float] | None:  # noqa: ARG002 - for subclasses
        """|rho(t)| for t < lags if the right answer is y_t = sum_s rho(s) x_(t-s); None for other tasks."""
        return None

    def data_needed(self) -> str:
        """The name in `available_data` of the data set that a worker must have on disk; "" if the task needs no data."""
        return ""

    def check_data(self, data_root: Path) -> None:
        """Raise DataError, with path and reason, if the data in `data_root` is missing, damaged or too short."""

    def data_problem(self, data_root: Path) -> str | None:
        """Why the task cannot run with this data directory, as "path: reason"; None if the task can run."""
        try:
            self.check_data(data_root)
        except DataError as error:
            return str(error)
        return None

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - for subclasses
        """The data sets that a worker reports for this task: name -> "ok" or a problem. taken: the `own_files` of all tasks."""
        return {}
