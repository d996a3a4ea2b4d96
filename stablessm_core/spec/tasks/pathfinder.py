"""Configuration of `pathfinder`, which needs no data."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.task import TaskSection

BLOCK = 250  # number of images drawn at a time


class Pathfinder(TaskSection):
    """Decide whether two marks are on the same dashed path: 32 x 32 images read pixel by pixel, 1,024 steps of one grey value.

    The task draws the images itself, with the constants of Pathfinder-32 in Long Range Arena (Tay et al., arXiv 2011.04006),
    after Linsley et al., arXiv 1805.08315. The images are the same for every run. Each image is drawn when it is first needed,
    which takes half a millisecond.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.pathfinder:PathfinderTask"
    order: ClassVar[float] = 5
    has_epochs: ClassVar[bool] = True

    name: Literal["pathfinder"]
    contour_length: int = Field(
        14,
        ge=6,
        le=14,
        description="Number of dashes in each long path. Long Range Arena has 14 (hard), 9 (medium) or 6 (easy).",
    )
    train_images: int = Field(
        20_000,
        ge=BLOCK,
        le=200_000,
        multiple_of=BLOCK,
        description="Size of the fixed training set (160,000 in Long Range Arena).",
    )

    def sequence_length(self) -> int:
        return 1024

    def chance_loss(self) -> float:
        return math.log(2)
