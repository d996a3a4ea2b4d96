"""Writes the results between the markers of docs/warnings.md, and the curves as an SVG file."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.warnings.rates import Fired, curve, rates, share
from benchmarks.warnings.reading import ACTING, LAYERS, SIGNALS, Record
from stablessm_core.statistics import wilson
from stablessm_core.telemetry.detectors import KINDS

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE, CURVES = DOCS / "warnings.md", DOCS / "warnings-curves.svg"
BEGIN, END = "<!-- measured: written by `python -m benchmarks.warnings` -->", "<!-- end of measured -->"
COLOURS = dict(zip(SIGNALS, ("#0072b2", "#009e73", "#d55e00", "#7f7f7f"), strict=True))


def write(records: Sequence[Record]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + "\n\n" + "\n".join(_measured(records)) + "\n\n" + END + tail, encoding="utf-8")
    CURVES.write_text(_figure(records), encoding="utf-8")


def _measured(records: Sequence[Record]) -> Iterator[str]:
    every_layer = [r for r in records if r.variant == LAYERS]
    records = [r for r in records if r.variant != LAYERS]
    plain = [r for r in records if r.on_warning == "continue"]
    seeds = sorted({r.seed for r in records})
    yield (
        f"{len(records) + len(every_layer)} runs, seeds {', '.join(map(str, seeds))}: {len(plain)} with `on_warning: continue` "
        f"({sum(r.steps for r in plain):,} steps, {sum(r.died for r in plain)} died), {len(records) - len(plain)} that act at "
        f"warnings, and {len(every_layer)} of every layer ({sum(r.steps for r in every_layer):,} steps). "
        f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}, torch {version('torch')}."
    )
    yield "\n### False alarms of all kinds together\n"
    yield "| healthy runs | runs | steps | alerts | alerts per 1,000 steps | kinds |\n| --- | --- | --- | --- | --- | --- |"
    yield _healthy("every layer, rates at which it trains", every_layer)
    yield _healthy("around the largest stable learning rate", plain)
    yield _healthy("both", [*every_layer, *plain])
    if unhealthy := [r for r in every_layer if not r.healthy]:
        which = "; ".join(f"{r.layer}, map {r.map}, {r.optimizer} at {r.lr:g}" for r in unhealthy)
        yield f"\nRuns of every layer that were not healthy, and count nowhere above: {which}."
    yield "\n### Who dies\n"
    yield "| variant | optimizer | direct | relu | exp | best |\n| --- | --- | --- | --- | --- | --- |"
    for variant, optimizer in dict.fromkeys((r.variant, r.optimizer) for r in plain):
        own = [r for r in plain if (r.variant, r.optimizer) == (variant, optimizer)]
        cells = [
            f"{sum(r.died for r in own if r.map == m)}/{sum(r.map == m for r in own)}" for m in ("direct", "relu", "exp", "best")
        ]
        yield f"| {variant} | {optimizer} | {' | '.join(cells)} |"
    tensors = Counter((r.optimizer, "direct" if r.map == "direct" else "other maps", _last(r.fatal)) for r in plain if r.died)
    named = "; ".join(f"{o}, {m}: `{t}` {n}" for (o, m, t), n in sorted(tensors.items()))
    yield f"\nThe first non-finite value that the recorder named, and in how many runs: {named}."
    yield "\n### How well the alerts predict divergence\n"
    yield "Precision and recall count runs, with 95 % Wilson intervals. The lead is in steps: the median, and 10 % to 90 %.\n"
    yield "| runs | alert | precision | recall | lead | false alarms per 1,000 healthy steps |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, group in _groups(plain):
        for alert, fired in _rules():
            found = rates(group, fired)
            if found.caught + found.false:
                yield f"| {name} | {alert} | {found.precision} | {found.recall} | {found.lead} | {found.false_per_1000} |"
    yield "\nThe same for any critical alert, by variant:\n"
    yield "| variant | precision | recall | lead | false alarms per 1,000 healthy steps |\n| --- | --- | --- | --- | --- |"
    for variant in dict.fromkeys(r.variant for r in plain):
        found = rates([r for r in plain if r.variant == variant], _critical)
        yield f"| {variant} | {found.precision} | {found.recall} | {found.lead} | {found.false_per_1000} |"
    yield "\n### What acting saves\n"
    yield "Cells of `direct` and `best` that died or raised a critical alert, run again with each setting. The table shows"
    yield "how many of the cells that died now stay finite, and how many of the cells that would have lived still finish.\n"
    yield from _acted(records)


def _healthy(name: str, records: Sequence[Record]) -> str:
    """A row about all alerts of the healthy runs among the records."""
    healthy = [r for r in records if r.healthy]
    kinds = Counter(kind for r in healthy for kind, _, _ in r.alerts)
    steps, count = sum(r.steps for r in healthy), sum(kinds.values())
    ends = wilson(count, steps)
    share_ = f"{1e3 * count / max(steps, 1):.2f} [{1e3 * ends.low:.2f}, {1e3 * ends.high:.2f}]"
    named = ", ".join(f"`{kind}` {n}" for kind, n in kinds.most_common())
    return f"| {name} | {len(healthy)} of {len(records)} | {steps:,} | {count} | {share_} | {named} |"


def _acted(records: Sequence[Record]) -> Iterator[str]:
    yield "| optimizer | map | on_warning | finished | stopped | diverged | had died, now finite | had lived, still finish |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    before = {r.cell: r for r in records if r.on_warning == "continue"}
    acted = [r for r in records if r.on_warning != "continue"]
    keys = sorted({(r.optimizer, r.map, ("stop", "rollback", "lower_lr").index(r.on_warning), r.on_warning) for r in acted})
    for optimizer, map_, _, setting in keys:
        own = [r for r in acted if (r.optimizer, r.map, r.on_warning) == (optimizer, map_, setting)]
        ends = Counter(r.status for r in own)
        dead, alive = [r for r in own if before[r.cell].died], [r for r in own if not before[r.cell].died]
        yield (
            f"| {optimizer} | {map_} | `{setting}` | {ends['finished']}/{len(own)} | {ends['cancelled']} | {ends['diverged']} | "
            f"{share(sum(not r.died for r in dead), len(dead))} | "
            f"{share(sum(r.status == 'finished' for r in alive), len(alive))} |"
        )


def _groups(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    for optimizer in dict.fromkeys(r.optimizer for r in records):
        own = [r for r in records if r.optimizer == optimizer]
        yield f"{optimizer}, direct", [r for r in own if r.map == "direct"]
        yield f"{optimizer}, other maps", [r for r in own if r.map != "direct"]


def _rules() -> Iterator[tuple[str, Fired]]:
    for kind in (*ACTING, "unstable_eigenvalue", "boundary_distance", "grad_over_weight"):
        yield f"`{kind}`", lambda r, kind=kind: [step for found, _, step in r.alerts if found == kind]  # type: ignore[misc]
    yield "any critical warning", _critical
    yield "any alert", lambda r: [step for kind, _, step in r.alerts if not KINDS[kind].nonfinite]


def _critical(record: Record) -> list[int]:
    return record.warned


def _last(tensor: str | None) -> str:
    return ".".join((tensor or "").split(".")[-2:])


def _figure(records: Sequence[Record]) -> str:
    """An SVG with curves of precision over recall for a falling threshold, one panel per group of runs. It has the size and the
    colours of the charts on the pages."""
    plain = [r for r in records if r.on_warning == "continue" and r.variant != LAYERS]
    panels = [
        ("adamw, direct", [r for r in plain if r.optimizer == "adamw" and r.map == "direct"], SIGNALS),
        ("sgd with and without momentum, direct", [r for r in plain if r.optimizer != "adamw" and r.map == "direct"], SIGNALS),
        ("sgd, other maps", [r for r in plain if r.optimizer != "adamw" and r.map != "direct"], SIGNALS[2:]),
    ]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 350" font-family="sans-serif" font-size="13">'
        '<rect width="960" height="350" fill="#fff"/>'
    ]
    for column, (title, group, signals) in enumerate(panels):
        x, y, side = 50 + 310 * column, 40, 250
        parts.append(f'<text x="{x}" y="24">{title}</text>')
        parts.append(f'<rect x="{x}" y="{y}" width="{side}" height="{side}" fill="none" stroke="#999"/>')
        for at in (0, 0.5, 1):
            parts.append(f'<text x="{x - 6}" y="{y + side * (1 - at) + 4:g}" text-anchor="end" fill="#555">{at:g}</text>')
            parts.append(f'<text x="{x + side * at:g}" y="{y + side + 16}" text-anchor="middle" fill="#555">{at:g}</text>')
        for signal in signals:
            points = [f"{x + side * recall:.1f},{y + side * (1 - p):.1f}" for _, recall, p in curve(group, signal)]
            parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[signal]}" stroke-width="2"/>')
    for i, signal in enumerate(SIGNALS):
        parts.append(f'<rect x="{50 + 180 * i}" y="326" width="18" height="4" fill="{COLOURS[signal]}"/>')
        parts.append(f'<text x="{74 + 180 * i}" y="333">{signal}</text>')
    parts.append('<text x="940" y="333" text-anchor="end" fill="#555">precision (up) over recall</text></svg>\n')
    return "\n".join(parts)
