"""Configuration of `pathfinder`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection

BLOCK = 250  # images that are drawn together


class Pathfinder(TaskSection):
    """Tell whether two marks lie on the same dashed path: 32 x 32 images read pixel by pixel, 1,024 steps of one grey value.

    Drawn here, with the constants of Pathfinder-32 in Long Range Arena (Tay et al., arXiv 2011.04006); after Linsley et al.,
    arXiv 1805.08315. The images are the same for every run; the first epoch draws them as it needs them, half a millisecond
    each.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.pathfinder.data:PathfinderTask"

    name: Literal["pathfinder"]
    contour_length: int = Field(
        14, ge=6, le=14, description="Dashes of each long path: 14 is Long Range Arena's hard set, 9 its middle, 6 its easy one."
    )
    train_images: int = Field(
        20_000,
        ge=BLOCK,
        le=200_000,
        multiple_of=BLOCK,
        description="A fixed training set of so many images (160,000 in the arena).",
    )

    def sequence_length(self) -> int:
        return 1024
