"""The report of the largest stable rates: one row per map, of what the runs died, exact sign tests of all pairs of maps, and the
rate of each seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from stablessm_core.statistics import ALPHA, Claim, LargestRate, adjusted, bears_larger_rate
from studies.paper.measures import DEAD, ENDED, UNCERTAIN
from studies.paper.rates import DECAY, Searched
from studies.paper.registry import Registry
from studies.paper.report import cells_of, rounded
from studies.paper.words import number

Rates = dict[str, dict[int, LargestRate]]
UNKNOWN = "cannot tell"
IN_FLOAT64 = {
    "dynamics": "not finite",
    "range": "finite, too large for float32",
    "arithmetic": "finite",
    "unknown": "not repeated",
}
EXPLORATORY = (
    "Exploratory: no test of this study was registered. The p-values are those of two-sided exact sign tests, paired by seed, "
    "after Holm's correction over all pairs of maps."
)


class Pair(NamedTuple):
    """Two maps, and the answer whether the first bears a larger learning rate than the second. why: the reason of the answer."""

    first: str
    second: str
    answer: str
    why: str
    claim: Claim


def rates_report(found: Searched, registry: Registry) -> dict[str, Any]:
    """The report as plain data, with the fields of all other reports. Equal runs give equal bytes."""
    rates = {name: search.results() for name, search in found.searches.items()}
    pairs = _judged_pairs(found, rates)
    report: dict[str, Any] = {
        "study": found.group.study,
        "preset": None,
        "size": found.group.size,
        "title": found.design.title,
        "seeds": found.design.seeds,
        "trained_means": found.design.chance,
        "claims_sha256": registry.sha256,
        "claims_at_submission": found.group.claims,
        "claims_changed": False,
        "family_size": registry.family_size,
        "commit": found.group.commit,
        "versions": found.versions,
        "machines": found.machines,
        "sweeps": found.sweeps,
        "departures": [EXPLORATORY, *found.design.departures],
        "problems": found.problems,
        "verdicts": [],
        "findings": [*_death_sentences(found), *_pair_sentences(pairs)],
        "cells": cells_of(found.control, found.control.design.parts[0]),
        "tables": [_map_table(found, rates), _death_table(found), _pair_table(pairs), _seed_table(found, rates)],
        "figures": _figures(found, rates),
        "configurations": [
            {"part": part.name, "base": dict(part.base), "grid": found.design.grid(part)} for part in found.design.parts
        ],
    }
    plain: dict[str, Any] = rounded(report)
    return plain


def _pair_sentences(pairs: Sequence[Pair]) -> Iterator[str]:
    """The answers about all pairs of maps, together for the maps with the same answer about a second map."""
    firsts: dict[tuple[str, str, str], list[str]] = {}
    for one in pairs:
        firsts.setdefault((one.second, one.answer, one.why), []).append(one.first)
    for (second, answer, why), names in firsts.items():
        bear = f"{', '.join(names)} {'bears' if len(names) == 1 else 'bear'} a larger learning rate than {second}"
        yield f"{bear}: {why}." if answer == "holds" else f"Whether {bear}: {answer}, {why}."


def _death_sentences(found: Searched) -> Iterator[str]:
    """For each map, whether its runs died and of what. Then how many runs of the control stay finite."""
    part = found.design.parts[0]
    immortal = [
        name for name, search in found.searches.items()
        if len(ends := search.results()) == found.design.seeds and all(one.open_ended for one in ends.values())
    ]  # fmt: skip
    for name, ids in found.deciding_deaths().items():
        if ids:
            yield f"{name}: {len(ids)} runs died next to the largest stable rates. {_causes(found, ids)}"
    if immortal:
        yield (
            f"{', '.join(immortal)}: without weight decay, every run stays finite, even at {number(part.rates[-1])}, the largest "
            "rate of the grid."
        )
    for rate in found.control.design.parts[0].rates:
        runs = [one for one in found.control.outcomes if one.rate == rate and one.state in ENDED]
        dead = [one.run_id for one in runs if one.state in DEAD]
        factor = 1 - rate * DECAY
        yield (
            f"With weight decay {DECAY:g} and a rate of {number(rate)}, a step multiplies decayed weights by {number(factor)} at "
            f"first: {len(runs) - len(dead)} of {len(runs)} runs stay finite."
        ) + (f" {_causes(found, dead)}" if dead else "")


def _causes(found: Searched, ids: Sequence[int]) -> str:
    """Such as "Cause by verdict: eigenvalue overflow 12. With frozen eigenvalues 12/12 live."."""
    deaths = [found.deaths[one] for one in ids]
    said = f"Cause by verdict: {_counted(spoken(cause) for cause, _ in deaths)}."
    frozen = [death.frozen for _, death in deaths]
    return said if set(frozen) == {None} else f"{said} With frozen eigenvalues {_living(frozen)} live."


def _death_table(found: Searched) -> dict[str, Any]:
    """One row per map and part: the causes of its deaths, and what the autopsies measured."""
    rows: list[list[Any]] = []
    for part, of_map in zip(found.design.parts, (found.deciding_deaths(), found.control_deaths()), strict=True):
        for name, ids in of_map.items():
            deaths = [found.deaths[one] for one in ids]
            if deaths:
                rows.append(
                    [
                        name,
                        part.name,
                        f"{len(deaths)}",
                        _counted(spoken(cause) for cause, _ in deaths),
                        _counted(IN_FLOAT64[death.kind] for _, death in deaths),
                        _counted(death.place for _, death in deaths),
                        _living(death.frozen for _, death in deaths),
                        _living(death.tenth for _, death in deaths),
                    ]
                )
    columns = ["map", "part", "deaths", "cause that the verdict names", "in float64", "first number that is not finite",
               "live with frozen eigenvalues", "live at a tenth of the rate"]  # fmt: skip
    caption = "Deaths next to the largest stable rates, and of the control: cause, and what the autopsy measured"
    return {"caption": caption, "columns": columns, "rows": rows}


def spoken(cause: str) -> str:
    """The name of a cause as words."""
    return cause.replace("_", " ").replace("lr ", "learning rate ")


def _counted(words: Iterable[str]) -> str:
    return ", ".join(f"{word} {count}" for word, count in sorted(Counter(words).items(), key=lambda one: (-one[1], one[0])))


def _living(lives: Iterable[bool | None]) -> str:
    tried = [one for one in lives if one is not None]
    return f"{sum(tried)}/{len(tried)}" if tried else "not tried"


def _map_table(found: Searched, rates: Rates) -> dict[str, Any]:
    """One row per map: the largest stable rates of its seeds, and how many seeds learnt at theirs."""
    rows: list[list[Any]] = []
    for name, of_seed in rates.items():
        values = sorted(one.rate for one in of_seed.values())
        spread = _quartiles(values) if values else [None] * 3
        learnt = sum(found.runs[name, seed, one.rate].trained for seed, one in of_seed.items() if one.rate)
        rows.append(
            [
                name,
                f"{len(of_seed)}/{found.design.seeds}",
                *(spread[i] for i in (1, 0, 2)),
                values[0] if values else None,
                values[-1] if values else None,
                f"{learnt}/{len(of_seed)}",
                f"{sum(one.open_ended for one in of_seed.values())}",
                f"{len(_uncertain(found, name, of_seed))}",
            ]
        )
    columns = ["map", "seeds", "median", "lower quartile", "upper quartile", "smallest", "largest", "learnt there",
               "no death found", "deaths not confirmed by float64"]  # fmt: skip
    return {"caption": "Largest stable learning rate of each seed", "columns": columns, "rows": rows}


def _quartiles(values: Sequence[float]) -> list[float]:
    return [float(x) for x in np.quantile(values, (0.25, 0.5, 0.75), method="inverted_cdf")]


def _judged_pairs(found: Searched, rates: Rates) -> list[Pair]:
    """All pairs of maps with the answer whether the first bears a larger learning rate."""
    pairs = _pairs(rates)
    claims, spared = _claims(rates, pairs), _claims(_confirmed(found, rates), pairs)
    judged = []
    for (first, second), claim in claims.items():
        answer, why = str(claim.verdict), claim.reason
        if found.problems:
            answer, why = UNKNOWN, " ".join(found.problems).removesuffix(".")
        elif spared[first, second].verdict != answer:
            answer, why = UNKNOWN, f"the answer depends on deaths that float64 does not confirm ({answer} with them)"
        judged.append(Pair(first, second, answer, why, claim))
    return judged


def _pair_table(pairs: Sequence[Pair]) -> dict[str, Any]:
    rows = [
        [
            f"Does {one.first} bear a larger learning rate than {one.second}?",
            *(one.answer, one.why, str(one.claim.first), str(one.claim.second), one.claim.p),
        ]
        for one in pairs
    ]
    columns = ["question", "answer", "why", "seeds at which the first map's rate is larger", "the second map's", "p, Holm"]
    return {"caption": "All pairs of maps", "columns": columns, "rows": rows}


def _pairs(rates: Rates) -> list[tuple[str, str]]:
    """All pairs of maps. The first map of a pair is the one whose rate is larger at more seeds."""
    found = []
    for one, other in combinations(rates, 2):
        first, second = rates[one], rates[other]
        lead = sum((first[s].rate > second[s].rate) - (first[s].rate < second[s].rate) for s in first if s in second)
        found.append((one, other) if lead >= 0 else (other, one))
    return found


def _claims(rates: Rates, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Claim]:
    """For each pair of maps, whether the first bears a larger rate."""
    judged = adjusted({str(i): bears_larger_rate(rates[one], rates[other]) for i, (one, other) in enumerate(pairs)}, ALPHA)
    return {pair: judged[str(i)] for i, pair in enumerate(pairs)}


def _confirmed(found: Searched, rates: Rates) -> Rates:
    """The rates without the seeds whose bracketing death float64 does not confirm."""
    left_out = {name: _uncertain(found, name, of_seed) for name, of_seed in rates.items()}
    return {name: {seed: one for seed, one in of_seed.items() if seed not in left_out[name]} for name, of_seed in rates.items()}


def _uncertain(found: Searched, name: str, of_seed: Mapping[int, LargestRate]) -> list[int]:
    """The seeds whose death at the next larger rate is arithmetic or unchecked."""
    return [
        seed
        for seed, one in of_seed.items()
        if not one.open_ended and found.runs[name, seed, one.above].state in UNCERTAIN
    ]  # fmt: skip


def _seed_table(found: Searched, rates: Rates) -> dict[str, Any]:
    rows: list[list[Any]] = [
        [f"{seed}", *(rates[name][seed].rate if seed in rates[name] else None for name in rates)]
        for seed in range(found.design.seeds)
    ]
    return {"caption": "The rate of each seed", "columns": ["seed", *rates], "rows": rows}


def _figures(found: Searched, rates: Rates) -> list[dict[str, Any]]:
    part = found.design.parts[0]
    ranges, shares = {}, {}
    for name, of_seed in rates.items():
        values = sorted(one.rate for one in of_seed.values())
        if not values:
            continue
        low, median, high = _quartiles(values)
        ranges[name] = {"low": low, "median": median, "high": high, "finite": len(values), "total": found.design.seeds}
        shares[name] = {"x": list(part.rates), "y": [sum(v >= rate for v in values) / len(values) for rate in part.rates]}
    if not ranges:
        return []
    caption = "Share of the seeds whose largest stable rate is at least this rate, by learning rate."
    return [
        {"chart": "paper_finite", "part": part.name, "caption": caption, "lines": shares},
        {
            "chart": "paper_ranges", "part": part.name, "caption": "Largest stable rate: median and quartiles over the seeds.",
            "ranges": ranges, "x_title": "largest stable learning rate",
        },
    ]  # fmt: skip
