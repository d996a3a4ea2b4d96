"""Configuration of `digits`, and the path of its file, which comes with scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.data.files import MissingData
from stablessm_core.spec.task import TaskSection


class Digits(TaskSection):
    """Classify scikit-learn's 8 x 8 digits read pixel by pixel: 64 steps of one grey value. The task needs no download."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.digits:digits"
    order: ClassVar[float] = 2
    has_epochs: ClassVar[bool] = True

    name: Literal["digits"]
    permuted: bool = Field(False, description="Shuffle the pixels with one fixed random permutation.")

    def sequence_length(self) -> int:
        return 64

    def chance_loss(self) -> float:
        return math.log(10)  # ten classes of about equal size

    def check_data(self, data_root: Path) -> None:  # noqa: ARG002 - scikit-learn brings the file
        digits_file()

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - no text files
        return {"digits": cls(name="digits").data_problem(data_root) or "ok"}


def digits_file() -> Path:
    """Path of scikit-learn's copy of the digits, found without an import of scikit-learn, which would take seconds."""
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise MissingData("digits: scikit-learn, which ships this data, is not installed")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise MissingData(f"{path}: no such file in the installed scikit-learn")
    return path
