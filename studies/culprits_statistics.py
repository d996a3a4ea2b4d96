"""Shares and exact paired tests of the study "who killed the run?". All of it is exploratory: no test was registered before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stablessm_core.statistics import Claim, Outcome, Paired, compare_maps, mcnemar, share
from studies.culprits import Cell, by_key

COMPARED = ("best", "direct")  # each against the native map


@dataclass(frozen=True)
class Compared:
    """Runs with the native map against runs with another map, paired by layer, seed and learning rate.

    Which of the two stayed finite: `test` has the pairs of which only the native run or only the other one did, and the p-value
    of the exact McNemar test. by_seed: the same with one vote per seed, because the pairs of a seed are not independent.
    """

    other: str
    pairs: int
    seeds: int
    test: Paired
    by_seed: Claim


def counted(values: Iterable[bool]) -> str:
    """How many of the values are true, with the Wilson interval of the share: "2/2 [0.34, 1.00]"; "" without a value."""
    values = list(values)
    return str(share(sum(values), len(values))) if values else ""


def compared(cells: Sequence[Cell], other: str) -> Compared | None:
    """The native map against another one; None without a pair.

    A pair is left out if one of its deaths is arithmetic, because such a death is no evidence about a map.
    """
    native: dict[int, list[bool]] = {}
    second: dict[int, list[bool]] = {}
    known = by_key(cells)
    for cell in cells:
        if cell.arm != "native" or (beside := known.get((cell.layer, other, cell.lr))) is None:
            continue
        for seed, finite in cell.finite.items():
            if seed in beside.finite and not (_arithmetic(cell, seed) or _arithmetic(beside, seed)):
                native.setdefault(seed, []).append(finite)
                second.setdefault(seed, []).append(beside.finite[seed])
    if not native:
        return None
    test = mcnemar([one for seed in native for one in native[seed]], [one for seed in native for one in second[seed]])
    by_seed = compare_maps(_outcomes(native), _outcomes(second)).finite
    return Compared(other, sum(map(len, native.values())), len(native), test, by_seed)


def comparison_sentences(cells: Sequence[Cell]) -> Iterator[str]:
    """A sentence for each of the maps of COMPARED, with the p-value or the reason why the runs cannot tell."""
    found = [one for other in COMPARED if (one := compared(cells, other)) is not None]
    if not found:
        return
    yield "Exploratory: these tests were not registered before the runs, and their p-values are not corrected for several tests."
    yield ""
    for one in found:
        many = f"{one.pairs} pair{'' if one.pairs == 1 else 's'} of equal layer, seed and learning rate"
        yield (
            f"- **native against {one.other}**, {many}: in {one.test.first_only} only the native run stays finite, in "
            f"{one.test.second_only} only the run with `{one.other}`; {_said(one.test)}. The pairs of one seed or layer are not "
            f"independent, so this p-value can be too small. With one vote per seed: {_by_seed(one)}."
        )


def _said(test: Paired) -> str:
    discordant = test.first_only + test.second_only
    return f"exact McNemar test, p = {test.p:.2g}" if discordant else "no pair differs, so the McNemar test has p = 1"


def _by_seed(one: Compared) -> str:
    if one.by_seed.verdict == "cannot tell":
        return str(one.by_seed)
    return f"{'the native map' if one.by_seed.direction > 0 else f'`{one.other}`'} stays finite more often: {one.by_seed.reason}"


def _arithmetic(cell: Cell, seed: int) -> bool:
    return seed in cell.deaths and cell.deaths[seed].kind == "arithmetic"


def _outcomes(finite: Mapping[int, Sequence[bool]]) -> dict[int, list[Outcome]]:
    return {seed: [Outcome(one, None, None) for one in values] for seed, values in finite.items()}
