"""Configuration of `mnist`, and the check of its four files. Importing this module reads no files."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.data.files import once_per_version
from stablessm_core.spec.data.mnist_idx import SPLITS, load_mnist
from stablessm_core.spec.task import TaskSection


class Mnist(TaskSection):
    """Classify MNIST digits read pixel by pixel: 784 steps of one grey value (IDX files in the data directory)."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.mnist:mnist"
    order: ClassVar[float] = 3
    own_files: ClassVar[frozenset[str]] = frozenset(
        f"mnist/{name}{ending}" for split in SPLITS.values() for name in split for ending in ("", ".gz")
    )

    name: Literal["mnist"]
    permuted: bool = Field(False, description="Shuffle the pixels with one fixed random permutation.")

    def sequence_length(self) -> int:
        return 784

    def data_needed(self) -> str:
        return self.name

    def check_data(self, data_root: Path) -> None:
        paths = [data_root / name for name in sorted(self.own_files)]
        once_per_version(
            ("mnist", str(data_root)),
            [path for path in paths if path.exists()],
            lambda: sum(len(load_mnist(data_root, split)[1]) for split in SPLITS),
        )

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - no text files
        return {"mnist": cls(name="mnist").data_problem(data_root) or "ok"}
