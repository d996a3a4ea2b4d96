"""The study of largest stable rates: for each map and seed, the learning rate at which training stops to survive.

The model is that of table 2, the layer of the paper's text. The study is exploratory: it belongs to no registered claim. Each
seed of each map has its own search (stablessm_core.statistics.largest_rate) on a grid that all maps share, so the rates are
compared seed by seed. The runs are ordinary runs in sweeps, in rounds: a round trains the next rate of every search. The state
of all searches follows from the stored runs alone.

The searches train without weight decay. AdamW multiplies a decayed weight by 1 - lr · decay in every step, so a decay d makes the
weights grow by itself above lr = 2 / d, whatever the map. A second part, the control, trains every map but `direct` with a decay
just below and just above this rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stablessm_core.statistics import RateSearch, largest_stable_rate
from studies.autopsies import Death, death_of
from studies.paper.designs import Design
from studies.paper.groups import Group, read_tags
from studies.paper.images import real
from studies.paper.measures import DEAD, ENDED
from studies.paper.outcomes import Collected, Outcome, Source, collect_part, mixed, outcome_of, trained_with

STUDY, PART, CONTROL = "rates", "search", "weight decay"
DECAY = 0.01  # of the control: the default of AdamW
NOT_JUDGED = "not judged"  # the run has no verdict yet; "unknown" is a verdict
LOWEST, HIGHEST, LEAP = 0.0003125, 1000.0, 16.0  # 1000 is the largest learning rate that a run may have
RESOLUTION = {"full": 2**0.5, "quick": 4.0}
# A probe with two seeds: with a stable map, runs live at 40 and die at 640. With direct, they live at 0.005 and die at 0.016.
START, START_DIRECT = 41.0, 0.005
MOST_RUNS = 8  # of one seed


@dataclass
class Searched:
    """The searches of a group by map, and the runs that they rest on.

    control: the outcomes of the runs with weight decay. runs: outcomes of the searches by map, seed and rate. deaths: by run, the
    cause that its verdict names and what its autopsy measured, of the runs next to a largest rate and of the control.
    problems: sentences about what is missing or does not belong together.
    """

    design: Design
    group: Group
    searches: dict[str, RateSearch]
    control: Collected
    runs: dict[tuple[str, int, float], Outcome] = field(default_factory=dict)
    tried: dict[tuple[str, int], int] = field(default_factory=dict)
    deaths: dict[int, tuple[str, Death]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)

    def proposed(self) -> dict[str, dict[int, float]]:
        """By map, the next rate of every seed that is not finished and may still train."""
        found: dict[str, dict[int, float]] = {}
        for name, search in self.searches.items():
            rates = {seed: rate for seed, rate in search.proposed().items() if self.tried.get((name, seed), 0) < MOST_RUNS}
            if rates:
                found[name] = rates
        return found

    def deciding_deaths(self) -> dict[str, list[int]]:
        """By map, the runs at the smallest unstable rates. Of a search, only these deaths decide and need an autopsy."""
        return {
            name: [self.runs[name, seed, one.above].run_id for seed, one in search.results().items() if not one.open_ended]
            for name, search in self.searches.items()
        }

    def decisive(self) -> list[int]:
        """The runs whose deaths need an autopsy: those of `deciding_deaths` and of `control_deaths`."""
        return [one for of_map in (self.deciding_deaths(), self.control_deaths()) for ids in of_map.values() for one in ids]

    def control_deaths(self) -> dict[str, list[int]]:
        """By map, the runs of the control that died."""
        dead = [one for one in self.control.outcomes if one.state in DEAD]
        return {name: [one.run_id for one in dead if one.variant == name] for name in self.control.design.parts[0].variants}

    @property
    def rounds_left(self) -> int:
        """How many rounds the slowest search is expected to need."""
        return max(search.rounds_left() for search in self.searches.values())


def rates_design(size: str, seeds: int | None = None) -> Design:
    """The design: the runs of table 2 on one grid of rates, of which each seed trains a few; and the control."""
    table = real(size)
    (part,) = table.parts
    grid = largest_stable_rate([0], LOWEST, HIGHEST, RESOLUTION[size]).grid
    own = replace(part, name=PART, base=with_decay(part.base, 0.0), rates=grid, exploratory=True)
    around = max(rate for rate in grid if rate * DECAY < 2), min(rate for rate in grid if rate * DECAY > 2)
    others = {name: section for name, section in part.variants.items() if name != "direct"}
    control = replace(own, name=CONTROL, base=with_decay(part.base, DECAY), variants=others, rates=around)
    if size == "quick":
        control = replace(control, seeds=1)
    departures = (
        f"The rates are {grid[0]:g} to {grid[-1]:g} in steps of a factor {RESOLUTION[size]:.3g}, instead of seven rates in steps "
        f"of 10. A search begins at {START:g} ({START_DIRECT:g} for direct), which a probe with two seeds suggested, leaps by a "
        f"factor of {LEAP:g}, then halves the interval. A seed trains at most {MOST_RUNS} runs.",
        "Bisection assumes that a seed that dies at one rate dies at every larger rate.",
        f"The searches train without weight decay. Table 2 has {DECAY:g}: AdamW multiplies a decayed weight by 1 - {DECAY:g} lr "
        f"in every step, so above a rate of {2 / DECAY:g} the weights grow with any map. The part “{CONTROL}” trains just "
        "below and just above this rate, with the decay.",
        *table.departures,
    )
    title = "Largest stable learning rates, seed by seed"
    minutes = 18 if size == "full" else 2
    return replace(
        table, study=STUDY, preset=None, title=title, parts=(own, control), departures=departures, minutes=minutes,
        seeds=seeds or table.seeds,
    )  # fmt: skip


def with_decay(base: Mapping[str, Any], decay: float) -> dict[str, Any]:
    """The base configuration with this weight decay."""
    return dict(base) | {"optimizer": dict(base["optimizer"]) | {"weight_decay": decay}}


def new_searches(design: Design) -> dict[str, RateSearch]:
    """A search for each map of the design, before any run."""
    part = design.parts[0]
    return {
        name: largest_stable_rate(
            range(design.seeds), LOWEST, HIGHEST, RESOLUTION[design.size],
            start=START_DIRECT if name == "direct" else START, leap=LEAP,
        )
        for name in part.variants
    }  # fmt: skip


def seeds_of(sweeps: Sequence[Mapping[str, Any]]) -> int:
    """The number of seeds of a group with these sweeps; 0 without a sweep. The sweeps of the first round have all seeds."""
    return max((len(sweep["grid"]["train.seed"]) for sweep in sweeps), default=0)


def sweeps_in_order(sweeps: Sequence[Mapping[str, Any]], group: str) -> list[Mapping[str, Any]]:
    """The sweeps of a group, the oldest first."""
    own = [sweep for sweep in sweeps if (read := read_tags(sweep["base"])) and read[0].group == group]
    return sorted(own, key=lambda sweep: int(sweep["id"]))


def collect_rates(source: Source, design: Design, group: Group) -> Searched:
    """Read the runs of a group and repeat its searches. A death counts as one, whether or not float64 confirms it."""
    own = sweeps_in_order(list(source.sweeps()), group.group)
    design = design.with_seeds(seeds_of(own) or design.seeds)
    part, control = design.parts
    found = Searched(design, group, new_searches(design), Collected(replace(design, parts=(control,)), group, design.seeds))
    trained: list[Mapping[str, Any]] = []
    of_control: Mapping[str, Any] | None = None
    foreign = 0
    for sweep in own:
        read = read_tags(sweep["base"])
        if read and read[1] == control.name:
            of_control = sweep
            continue
        runs = source.runs(int(sweep["id"]))
        found.sweeps.append({"id": int(sweep["id"]), "part": read[1] if read else "", "created_at": sweep["created_at"],
                             "runs": len(runs)})  # fmt: skip
        trained += runs
        for run in runs:
            outcome = outcome_of(source, part, run)
            if outcome is None or outcome.seed >= design.seeds:
                foreign += 1
                continue
            _record(found, outcome)
    trained += collect_part(found.control, source, control, of_control)
    found.sweeps += found.control.sweeps
    found.versions, found.machines = trained_with(trained)
    causes = {int(run["id"]): str(run["cause"] or NOT_JUDGED) for run in trained}
    found.deaths = {one: (causes[one], death_of(source.autopsy(one))) for one in found.decisive()}
    found.problems = [*_problems(found, foreign), *found.control.problems]
    return found


def _record(found: Searched, outcome: Outcome) -> None:
    key = outcome.variant, outcome.seed
    found.tried[key] = found.tried.get(key, 0) + 1
    known = found.runs.get((*key, outcome.rate))
    if known is not None and known.state in ENDED:
        return
    found.runs[*key, outcome.rate] = outcome
    if outcome.state in ENDED:
        found.searches[outcome.variant].record(outcome.seed, outcome.rate, outcome.state == "finite")


def _problems(found: Searched, foreign: int) -> list[str]:
    said = []
    if found.design.signature != found.group.design:
        said.append("The design of this study has changed since its runs were submitted.")
    if len(found.versions) > 1:
        said.append(mixed(found.versions))
    if foreign:
        said.append(f"{foreign:,} runs have settings that are not in the design.")
    if waiting := sum(one.state == "open" for one in found.runs.values()):
        said.append(f"{waiting:,} runs have not ended.")
    for name, search in found.searches.items():
        if unknown := sorted(search.proposed()):
            said.append(f"{name}: the largest stable rate of {_seeds(unknown)} is not known.")
    return said


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'' if len(seeds) == 1 else 's'} {', '.join(map(str, seeds))}"
