"""Configuration of `digits`, and where its file lies: in the installed scikit-learn, not in the data directory."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection


class Digits(TaskSection):
    """Classify scikit-learn's 8 x 8 digits read pixel by pixel: 64 steps of one grey value. Needs no download."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.digits.data:digits"

    name: Literal["digits"]
    permuted: bool = Field(False, description="Shuffle the pixels by one fixed random permutation.")

    def sequence_length(self) -> int:
        return 64

    def check_data(self, data_root: Path) -> None:  # noqa: ARG002 - scikit-learn brings the file
        digits_file()

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - no text files
        from stablessm_core.tasks.requirements import task_problem

        return {"digits": task_problem(cls(name="digits"), data_root) or "ok"}


def digits_file() -> Path:
    """scikit-learn's own copy of the digits, found without importing scikit-learn, which takes seconds."""
    from stablessm_core.tasks.files import DataError

    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("digits: scikit-learn, which ships this data, is not installed")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise DataError(f"{path}: no such file in the installed scikit-learn")
    return path
