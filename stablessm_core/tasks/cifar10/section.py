"""Configuration of `cifar10`, and the check of its files. Reads them only when asked."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection

FOLDERS = ("cifar10", "cifar-10-batches-bin")  # the second is the folder in the official archive
FULL = {"train": tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test": ("test_batch.bin",)}
SAMPLE = {"train": ("cifar10-sample/train-first4000.bin",), "test": ("cifar10-sample/test-first1000.bin",)}
ENDINGS = ("", ".gz", ".xz")


def _every_file() -> frozenset[str]:
    full = [f"{folder}/{name}" for folder in FOLDERS for names in FULL.values() for name in names]
    sample = [name for names in SAMPLE.values() for name in names]
    return frozenset(name + ending for name in full + sample for ending in ENDINGS)


class Cifar10(TaskSection):
    """Classify CIFAR-10 images read pixel by pixel: 1,024 steps of grey or colour (binary files in the data directory).

    The full set is used where it lies there, else the sample of 4,000 training and 1,000 test images, with which results do
    not compare to published ones; the run's record says which it was. Source: Krizhevsky, "Learning Multiple Layers of
    Features from Tiny Images", 2009; as sequences Tay et al. (Long Range Arena), arXiv 2011.04006.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.cifar10.data:cifar10"
    own_files: ClassVar[frozenset[str]] = _every_file()

    name: Literal["cifar10"]
    colour: bool = Field(False, description="Each step has red, green and blue; false: one grey value, as in Long Range Arena.")
    permuted: bool = Field(False, description="Shuffle the pixels by one fixed random permutation.")

    def sequence_length(self) -> int:
        return 1024

    def data_needed(self) -> str:
        return self.name

    def check_data(self, data_root: Path) -> None:
        from stablessm_core.tasks.cifar10.records import load_cifar10
        from stablessm_core.tasks.files import once_per_version

        paths = [data_root / name for name in sorted(self.own_files)]
        once_per_version(
            ("cifar10", str(data_root)),
            [path for path in paths if path.exists()],
            lambda: sum(len(load_cifar10(data_root, split)[1]) for split in FULL),
        )

    @classmethod
    def available_data(cls, data_root: Path, taken: Collection[str]) -> dict[str, str]:  # noqa: ARG003 - no text files
        from stablessm_core.tasks.requirements import task_problem

        return {"cifar10": task_problem(cls(name="cifar10"), data_root) or "ok"}
