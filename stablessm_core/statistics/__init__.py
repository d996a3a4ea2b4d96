"""Statistics of several runs that differ by their seed: shares, paired tests, largest stable rates, verdicts on a claim.

A run has three outcomes that are kept apart: whether it stayed finite, whether it trained, and its loss. Two maps are compared
seed by seed. A claim holds, does not hold, or the runs cannot tell. Nothing here reads a database or imports torch. scipy is
imported inside the functions that need it, because it takes most of a second.
"""

from stablessm_core.statistics.intervals import (
    Equivalence,
    Interval,
    Share,
    bootstrap,
    bootstrap_mean,
    equivalence,
    share,
    wilson,
)
from stablessm_core.statistics.largest_rate import LargestRate, RateSearch, largest_rate_on_grid, largest_stable_rate
from stablessm_core.statistics.outcomes import Outcome, Outcomes, outcome, outcomes
from stablessm_core.statistics.paired import EXACT_PAIRS, Paired, discordant, holm, mcnemar, sign_flips, signs
from stablessm_core.statistics.verdicts import ALPHA, Claim, MapComparison, adjusted, bears_larger_rate, compare_maps

__all__ = [
    "ALPHA",
    "EXACT_PAIRS",
    "Claim",
    "Equivalence",
    "Interval",
    "LargestRate",
    "MapComparison",
    "Outcome",
    "Outcomes",
    "Paired",
    "RateSearch",
    "Share",
    "adjusted",
    "bears_larger_rate",
    "bootstrap",
    "bootstrap_mean",
    "compare_maps",
    "discordant",
    "equivalence",
    "holm",
    "largest_rate_on_grid",
    "largest_stable_rate",
    "mcnemar",
    "outcome",
    "outcomes",
    "share",
    "sign_flips",
    "signs",
    "wilson",
]
