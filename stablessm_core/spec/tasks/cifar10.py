"""Configuration of `cifar10`, and the check of its files. Importing this module reads no files."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.spec.data.cifar10_records import ENDINGS, FOLDERS, FULL, SAMPLE, load_cifar10
from stablessm_core.spec.data.files import existing, once_per_version
from stablessm_core.spec.section import not_allowed
from stablessm_core.spec.task import TaskSection


def _every_file() -> frozenset[str]:
    full = [f"{folder}/{name}" for folder in FOLDERS for names in FULL.values() for name in names]
    sample = [name for names in SAMPLE.values() for name in names]
    return frozenset(name + ending for name in full + sample for ending in ENDINGS)


class Cifar10(TaskSection):
    """Classify CIFAR-10 images read pixel by pixel: 1,024 steps of grey or colour (binary files in the data directory).

    The task uses the full set if it is available, otherwise a sample of 4,000 training and 1,000 test images. Results on the
    sample are not comparable to published results. The run records which set it used. With the splits `validation` and `pooled`,
    evaluations measure validation images, and the run's result has the test loss at the best validation. Sources: Krizhevsky,
    "Learning Multiple Layers of Features from Tiny Images", 2009; images as sequences: Tay et al. (Long Range Arena), arXiv
    2011.04006.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.cifar10:cifar10"
    order: ClassVar[float] = 4
    has_epochs: ClassVar[bool] = True
    own_files: ClassVar[frozenset[str]] = _every_file()

    name: Literal["cifar10"]
    colour: bool = Field(
        False, description="true: each step has red, green and blue. false: one grey value, as in Long Range Arena."
    )
    permuted: bool = Field(False, description="Shuffle the pixels with one fixed random permutation.")

    subset: int | None = Field(
        None, ge=1, le=50_000, description="Number of training images, drawn by train.seed. null: all of the split."
    )
    split: Literal["standard", "validation", "pooled"] = Field(
        "standard",
        description="standard: 50,000 images for training, the 10,000 test images for evaluation. validation: 45,000, and 5,000 "
        "for validation. pooled: all 60,000 mixed, then 45,000, 5,000 for validation and 10,000 for the test, as the StableSSM "
        "authors did. The sample is divided in the same ratios.",
    )

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.split != "standard" and self.subset is not None and self.subset > 45_000:
            raise not_allowed("subset", self.subset, f"at most 45000, the training images of the split {self.split!r}")
        return self

    def sequence_length(self) -> int:
        return 1024

    def chance_loss(self) -> float:
        return math.log(10)  # ten classes of about equal size

    def data_needed(self) -> str:
        return self.name

    def check_data(self, data_root: Path) -> None:
        once_per_version(
            ("cifar10", str(data_root)),
            existing(data_root, self.own_files),
            lambda: sum(len(load_cifar10(data_root, split)[1]) for split in FULL),
        )

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - no text files
        return {"cifar10": cls(name="cifar10").data_problem(data_root) or "ok"}
