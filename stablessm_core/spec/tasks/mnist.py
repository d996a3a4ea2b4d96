"""Configuration of `mnist`, and the check of its four files. Importing this module reads no files."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.spec.data.files import existing, once_per_version
from stablessm_core.spec.data.mnist_idx import SPLITS, load_mnist
from stablessm_core.spec.section import not_allowed
from stablessm_core.spec.task import TaskSection


class Mnist(TaskSection):
    """Classify MNIST digits read pixel by pixel: 784 steps of one grey value (IDX files in the data directory).

    With the splits `validation` and `pooled`, evaluations measure 5,000 validation images. Whenever their accuracy improves, the
    run also measures the 10,000 test images, so its result has the test loss at the best validation. `pooled` is the split of the
    StableSSM authors: its test images are not the standard ones.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.mnist:mnist"
    order: ClassVar[float] = 3
    has_epochs: ClassVar[bool] = True
    own_files: ClassVar[frozenset[str]] = frozenset(
        f"mnist/{name}{ending}" for split in SPLITS.values() for name in split for ending in ("", ".gz")
    )

    name: Literal["mnist"]
    permuted: bool = Field(False, description="Shuffle the pixels with one fixed random permutation.")

    pool: Literal[1, 2] = Field(1, description="2: a step is the mean of 2 x 2 pixels, so a sequence has 196 steps, not 784.")
    subset: int | None = Field(
        None, ge=1, le=60_000, description="Number of training images, drawn by train.seed. null: all of the split."
    )
    split: Literal["standard", "validation", "pooled"] = Field(
        "standard",
        description="standard: 60,000 images for training, the 10,000 test images for evaluation. validation: 55,000, and 5,000 "
        "for validation. pooled: all 70,000 mixed, then 55,000, 5,000 for validation and 10,000 for the test.",
    )

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.split != "standard" and self.subset is not None and self.subset > 55_000:
            raise not_allowed("subset", self.subset, f"at most 55000, the training images of the split {self.split!r}")
        return self

    def sequence_length(self) -> int:
        return 784 // self.pool**2

    def chance_loss(self) -> float:
        return math.log(10)  # ten classes of about equal size

    def data_needed(self) -> str:
        return self.name

    def check_data(self, data_root: Path) -> None:
        once_per_version(
            ("mnist", str(data_root)),
            existing(data_root, self.own_files),
            lambda: sum(len(load_mnist(data_root, split)[1]) for split in SPLITS),
        )

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - no text files
        return {"mnist": cls(name="mnist").data_problem(data_root) or "ok"}
