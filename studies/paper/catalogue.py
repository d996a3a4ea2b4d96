"""The names of all studies, and the design or the computation behind each name."""

from __future__ import annotations

from collections.abc import Callable

from studies.paper import images, sequences
from studies.paper.designs import PRESETS, SIZES, Design

# the studies that train runs, by name and preset
TRAINED: dict[tuple[str, str | None], Callable[[str], Design]] = {
    ("table2", "paper"): images.real,
    ("table2", "released"): images.released,
    ("table3", None): images.sample,
    ("table7", None): sequences.recall,
    ("fig3", None): sequences.ratios,
    ("fig4", None): sequences.text,
}
COMPUTED = ("table5", "fig1", "fig2", "fig6")  # the studies that need no runs
NAMES = ("table2", "table3", "table5", "table7", "fig1", "fig2", "fig3", "fig4", "fig6")


def design(study: str, preset: str | None = None, size: str = "full", seeds: int | None = None) -> Design:
    """The design of a study. Raises ValueError for an unknown study, preset or size."""
    if size not in SIZES:
        raise ValueError(f"size is {size!r}; allowed: {', '.join(SIZES)}")
    key = (study, checked_preset(study, preset))
    if key not in TRAINED:
        raise ValueError(f"study is {study!r}; allowed: {', '.join(dict.fromkeys(name for name, _ in TRAINED))}")
    made = TRAINED[key](size)
    return made if seeds is None else made.with_seeds(seeds)


def checked_preset(study: str, preset: str | None) -> str | None:
    """The preset of the study: `paper` by default if it has presets, else None. Raises ValueError if it is not one of them."""
    allowed = [one for name, one in TRAINED if name == study and one is not None]
    if not allowed:
        if preset is not None:
            raise ValueError(f"preset is {preset!r}; {study} has no presets")
        return None
    if preset is not None and preset not in allowed:
        raise ValueError(f"preset is {preset!r}; allowed: {', '.join(PRESETS)}")
    return preset or allowed[0]
