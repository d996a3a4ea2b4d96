"""The study "who killed the run?" as Markdown: tables, and the few sentences that their numbers support."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from stablessm_core.statistics import share
from studies.autopsies import KINDS, Death
from studies.culprits import CULPRITS, FROZEN, FULL, Cell, Findings, Size, by_key, culprit
from studies.culprits_statistics import comparison_sentences, counted
from studies.stability_map import Point, critical

Rows = list[list[str]]
ARMS = ("native", FROZEN, "direct", "best")


def culprits_text(found: Findings) -> str:
    """The whole report as one Markdown text."""
    return "\n".join(
        [
            "# Who killed the run?",
            "",
            *preamble(found),
            "",
            "## Which runs stay finite",
            "",
            *as_markdown(finite_rows(found.cells, found.size)),
            "",
            "## What killed the others",
            "",
            *as_markdown(death_rows(found.cells)),
            "",
            *sentences(found.cells),
            "",
            *comparisons(found.cells),
            "## Stability map",
            "",
            *as_markdown(map_rows(found.points)),
            "",
            *map_sentences(found.points),
            "",
        ]
    )


def comparisons(cells: Sequence[Cell]) -> Iterator[str]:
    """The section with the tests of the native map against the others; nothing without a pair."""
    said = list(comparison_sentences(cells))
    if said:
        yield from ("## Native map against other maps", "", *said, "")


def scaled(size: Size) -> str:
    """The sentence about what a size scales down from the full size; "" for the full size."""
    if size.name == FULL.name:
        return ""
    rates = ", ".join(f"{rate:g}" for rate in FULL.rates)
    return (
        f" Scaled down from {FULL.steps} steps, learning rates {rates} and {FULL.seeds} seeds, and in the stability map from "
        f"{FULL.map.steps} steps and {FULL.map.seeds} seeds; it judges nothing."
    )


def preamble(found: Findings) -> Iterator[str]:
    size = found.size
    rates = ", ".join(f"{rate:g}" for rate in size.rates)
    runs = sum(len(cell.finite) for cell in found.cells)
    deaths = sum(len(cell.deaths) for cell in found.cells)
    yield (
        f"Size `{size.name}`: {size.steps} steps at width {size.model['d_model']} on {size.task['name']} of length "
        f"{size.task['length']}, AdamW, learning rates {rates}, {size.seeds} seeds; {runs} runs, {deaths} deaths. Stability map: "
        f"{len(found.points)} runs of {size.map.steps} steps. Sweeps {', '.join(map(str, found.sweeps))}; "
        f"{', '.join(found.versions) or 'versions unknown'}; {'; '.join(found.machines) or 'machine unknown'}. Brackets are 95 % "
        f"Wilson intervals.{scaled(size)}"
    )
    reasons = Counter(death.reason for _, _, death in deaths_of(found.cells) if death.reason)
    problems = found.problems + [f"{count} autopsies without a result: {reason}" for reason, count in reasons.items()]
    if problems:
        yield ""
        yield from (f"- **Not complete**: {problem}" for problem in problems)


def as_markdown(rows: Rows) -> Iterator[str]:
    """The lines of a Markdown table; the first row has the titles."""
    head, *body = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in body:
        yield "| " + " | ".join(row) + " |"


def finite_rows(cells: Sequence[Cell], size: Size) -> Rows:
    """One row per layer, one column per arm: finite runs / all runs, at each learning rate in the order of `size.rates`."""
    rates = " · ".join(f"{rate:g}" for rate in size.rates)
    rows = [["layer", *(f"{arm}, lr {rates}" for arm in ARMS)]]
    known = by_key(cells)
    for layer in dict.fromkeys(cell.layer for cell in cells):
        row = []
        for arm in ARMS:
            found = [known.get((layer, arm, rate)) for rate in size.rates]
            row.append(" · ".join(counted(c.finite.values()) if c else "-" for c in found) if any(found) else "")
        rows.append([layer, *row])
    return rows


def death_rows(cells: Sequence[Cell]) -> Rows:
    """One row per layer, arm and rate with deaths.

    The columns "from the start" count, of the seeds that died here, those whose run of the other arm stayed finite. The columns
    after them count trials of the autopsies, which begin right before the trouble, and end soon after the step of the death.
    """
    rows = [["layer", "map", "lr", "deaths", "median step", "float64", "first shows in", "frozen from the start",
             "best from the start", "trial: frozen", "trial: another map", "trial: a tenth of the rate",
             "killed by"]]  # fmt: skip
    known = by_key(cells)
    for cell in cells:
        deaths = list(cell.deaths.values())
        if not deaths:
            continue
        steps = sorted(death.step for death in deaths)
        others = [_saved(cell, known.get((cell.layer, arm, cell.lr))) for arm in (FROZEN, "best")]
        trials = [_lives(deaths, name) for name in ("frozen", "other", "tenth")]
        maps = {death.other_map for death in deaths if death.other is not None} - {""}
        trials[1] += f" ({', '.join(sorted(maps))})" if maps else ""
        rows.append([
            cell.layer, cell.arm, f"{cell.lr:g}", counted(not one for one in cell.finite.values()), f"{steps[len(steps) // 2]}",
            _counts(Counter(death.kind for death in deaths)), _counts(Counter(death.place for death in deaths)), *others, *trials,
            _counts(Counter(culprit(known, cell, seed) for seed in cell.deaths)),
        ])  # fmt: skip
    return rows


def _saved(cell: Cell, other: Cell | None) -> str:
    """Of the seeds that died in this cell, how many stayed finite in the other cell (`counted`); "" without such a cell."""
    if other is None or other is cell:
        return ""
    return counted(other.finite[seed] for seed in cell.deaths if seed in other.finite)


def _lives(deaths: Sequence[Death], trial: str) -> str:
    return counted(lives for death in deaths if (lives := getattr(death, trial)) is not None)


def _counts(counter: Counter[str]) -> str:
    """ "norm 3, loss 1"; only the name if there is one kind."""
    if len(counter) == 1:
        return next(iter(counter))
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def deaths_of(cells: Sequence[Cell]) -> Iterator[tuple[Cell, int, Death]]:
    for cell in cells:
        for seed, death in cell.deaths.items():
            yield cell, seed, death


def sentences(cells: Sequence[Cell]) -> Iterator[str]:
    """The deaths of each arm in numbers."""
    known = by_key(cells)
    for arm in ARMS:
        of_arm = [cell for cell in cells if cell.arm == arm]
        deaths = [death for _, _, death in deaths_of(of_arm)]
        runs = sum(len(cell.finite) for cell in of_arm)
        if not runs:
            continue
        if not deaths:
            yield f"- **{arm}**: of the runs, {share(runs, runs)} stay finite."
            continue
        kinds = Counter(death.kind for death in deaths)
        culprits = Counter(culprit(known, cell, seed) for cell, seed, _ in deaths_of(of_arm))
        text = f"- **{arm}**: of the runs, {share(len(deaths), runs)} die. In float64: {_named(kinds, KINDS)}. "
        text += f"Killed by: {_named(culprits, CULPRITS)}."
        saved = [f"{said} {lives}" for name, said in SAVED.items() if (lives := _lives(deaths, name))]
        yield text + (f" Trials of the autopsies that live: {', '.join(saved)}." if saved else "")


SAVED = {"frozen": "with the recurrence frozen", "other": "with another map", "tenth": "at a tenth of the rate"}


def _named(counter: Counter[str], names: Sequence[str]) -> str:
    return ", ".join(f"{counter[name]} {name}" for name in names if counter[name])


def map_rows(points: Sequence[Point]) -> Rows:
    """One row per length and map. "finite" has one entry per learning rate."""
    rates = sorted({point.lr for point in points})
    at_rates = "finite at lr " + " · ".join(f"{rate:g}" for rate in rates)
    rows = [["length T", "e^(88.72/T)", "map", at_rates, "largest |λ| of a finite step", "|λ| of fatal steps"]]
    for length, map_ in dict.fromkeys((point.length, point.map) for point in points):
        own = [point for point in points if (point.length, point.map) == (length, map_)]
        finite = []
        for rate in rates:
            at = [point.fatal is None for point in own if point.lr == rate]
            finite.append(counted(at) or "-")
        fatal = sorted(point.fatal for point in own if point.fatal is not None and math.isfinite(point.fatal))
        largest = max((point.largest for point in own if math.isfinite(point.largest)), default=math.nan)
        span = "" if not fatal else f"{fatal[0]:.5g}" if len(fatal) == 1 else f"{fatal[0]:.5g} to {fatal[-1]:.5g}"
        rows.append([f"{length}", f"{critical(length):.5g}", map_, " · ".join(finite), f"{largest:.5g}", span])
    return rows


def map_sentences(points: Sequence[Point]) -> Iterator[str]:
    """How well the line separates finite steps from fatal ones. A run whose |lambda| was not recorded is left out."""
    known = [point for point in points if math.isfinite(point.largest if point.fatal is None else point.fatal)]
    died = [(point.fatal, point.line) for point in known if point.fatal is not None]
    lived = [(point.largest, point.line) for point in points if math.isfinite(point.largest)]
    if died:
        beyond = sum(fatal > line for fatal, line in died)
        nearest = min(math.log(fatal) / math.log(line) if fatal > 0 else -math.inf for fatal, line in died)
        yield (
            f"- Of the runs, {share(len(died), len(known))} died. Of these, {share(beyond, len(died))} had the largest |λ| of "
            f"the fatal step beyond the line; the smallest ln|λ| of a fatal step was {nearest:.3g} times that of the line."
        )
    if lived:
        nearest = max(math.log(largest) / math.log(line) for largest, line in lived if largest > 0)
        beyond = sum(largest > line for largest, line in lived)
        yield (
            f"- Of the runs, {share(beyond, len(lived))} had an eigenvalue beyond the line in a finite step; the largest ln|λ| "
            f"of a finite step was {nearest:.3g} times that of the line."
        )
