"""The study of every state-space system as text: a Markdown table, and a sentence for each row that parts from the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from studies.systems import Row, Size

TIMES = 2  # a change of |grad|/|w| by less is not worth a sentence


def systems_text(rows: Sequence[Row], size: Size) -> str:
    """The table and the sentences as one Markdown text."""
    return "\n".join([*table(rows, size), "", *sentences(rows, size), ""])


def table(rows: Sequence[Row], size: Size) -> Iterator[str]:
    """The lines of the Markdown table: two header lines, then one line per row."""
    first_task = next(iter(size.tasks))  # the only task whose score is a loss instead of an accuracy
    titles = [
        "layer", "map", "parameters", *(f"{column}{', loss' if column == first_task else ''}" for column in size.tasks),
        "largest lr with all seeds finite", "p99 of \\|grad\\|/\\|w\\|", "spread over eigenvalues", "smallest distance",
        "longest memory, first → last step", "steps/s",
    ]  # fmt: skip
    yield "| " + " | ".join(titles) + " |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        cells = [
            row.layer,
            row.map,
            f"{row.parameters:,}",
            *(_score_cell(row.scores.get(column)) for column in size.tasks),
            _rates_cell(row),
        ]
        cells += [_number(row.ratios[0]), _number(row.ratios[1])] if row.ratios else ["none", "none"]
        cells.append("none" if row.distance is None else _number(row.distance))
        cells.append("none" if row.memory is None else f"{_number(row.memory[0])} → {_number(row.memory[1])}")
        yield "| " + " | ".join([*cells, f"{row.steps_per_second:.0f}"]) + " |"


def _score_cell(score: tuple[float, int, int] | None) -> str:
    if score is None:
        return ""
    value, finite, total = score
    return _number(value) + (f" ({finite}/{total})" if finite < total else "")


def _rates_cell(row: Row) -> str:
    largest = row.largest_rate
    failures = [f"{rate:g}: {finite}/{total}" for rate, (finite, total) in sorted(row.rates.items()) if finite < total]
    return ("none" if largest is None else f"{largest:g}") + (f" ({', '.join(failures)})" if failures else "")


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else str(value)


def sentences(rows: Sequence[Row], size: Size) -> Iterator[str]:
    """One sentence for each row that parts from the others, then one about the rest. Each states only what the numbers show.

    A row parts from the others if a run died, or if its map changes the 99th percentile of |grad|/|w| at least twofold, the
    largest stable learning rate, or a score by a tenth.
    """
    native = {row.layer: row for row in rows if row.map == "native"}
    rest = []
    for row in rows:
        other = native.get(row.layer)
        if _parts(row, None if other is row else other, size):
            yield f"- **{row.layer}, {row.map}**: " + _sentence(row, other, size)
        else:
            rest.append(f"{row.layer}{'' if row.map == 'native' else f' ({row.map})'}")
    if rest:
        yield (
            f"- In all other rows, every seed stays finite up to the largest learning rate tried. A second map in such a row "
            f"changes |grad|/|w| less than {TIMES}-fold and no score by a tenth: {', '.join(rest)}."
        )


def _parts(row: Row, native: Row | None, size: Size) -> bool:
    """Whether the row says something that the sentence about the rest does not."""
    if row.largest_rate is None or row.largest_rate < max(row.rates):
        return True
    if native is None:
        return False
    times = row.ratios[0] / native.ratios[0] if row.ratios and native.ratios else 1.0
    changed = native.largest_rate != row.largest_rate or _changes(row, native, size)
    return bool(changed) or not 1 / TIMES < times < TIMES


def _sentence(row: Row, native: Row | None, size: Size) -> str:
    rates = sorted(row.rates)
    stable = row.largest_rate
    if stable is None:
        text = f"not all seeds stay finite even at lr {rates[0]:g}"
    elif stable == rates[-1]:
        text = f"all seeds stay finite up to lr {stable:g}, the largest tried"
    else:
        text = f"all seeds stay finite up to lr {stable:g}, not at {rates[rates.index(stable) + 1]:g}"
    if native is not None and native is not row:
        other = native.largest_rate
        compared = "the same as" if other == stable else "more than" if (stable or 0) > (other or 0) else "less than"
        text += f", {compared} with its native map"
        if row.ratios and native.ratios:
            times = native.ratios[0] / row.ratios[0]
            text += f"; the 99th percentile of |grad|/|w| is {_number(times if times >= 1 else 1 / times)} times "
            text += "smaller" if times >= 1 else "larger"
        text += _compare_with_native(row, native, size)
    return text + "."


def _compare_with_native(row: Row, native: Row, size: Size) -> str:
    changes = _changes(row, native, size)
    return "; " + ", ".join(changes) if changes else "; on no task do the two differ by a tenth"


def _changes(row: Row, native: Row, size: Size) -> list[str]:
    """The tasks on which the two maps differ by a tenth or more: relative for losses, absolute for accuracies."""
    changes, first_task = [], next(iter(size.tasks))
    for column in size.tasks:
        (own, *_), (other, *_) = row.scores[column], native.scores[column]
        if not (math.isfinite(own) and math.isfinite(other)):
            continue
        better = (other - own) / max(abs(other), 1e-12) if column == first_task else own - other
        if abs(better) >= 0.1:
            changes.append(f"{'better' if better > 0 else 'worse'} on {column} ({_number(own)}, native {_number(other)})")
    return changes
