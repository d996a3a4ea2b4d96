"""Judges the runs of a mix by their critical warnings, and writes the results between markers of docs/warnings.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.warnings.mix import OPTIMIZERS
from benchmarks.warnings.rates import Rates, rates, share
from benchmarks.warnings.reading import ACTING, Record
from benchmarks.warnings.rows_of_run import RowsOfRun, rows_of_run

PAGE = Path(__file__).parent.parent.parent / "docs" / "warnings.md"
BEGIN, END = "<!-- mix: written by `python -m benchmarks.warnings --mix` -->", "<!-- end of mix -->"
LOSS = "loss_over_start"
KINDS = (*ACTING, "unstable_eigenvalue", "boundary_distance", "grad_over_weight", "dead_eigenvalues")
ORDINARY = {"adamw": 0.03, "sgd": 0.1, "momentum": 0.03}  # the largest rate that counts as ordinary
EXPLODED = 10.0  # loss at the end divided by the loss at the start: a run above it has exploded, although its numbers are finite
LAST = 8  # number of last losses in the median that counts as the loss at the end
EARLY = 3  # a run that dies at this step or before leaves almost no time for a warning


def judge(config: dict[str, Any], folder: Path | None = None) -> Record:
    """Train a run, or read its rows from `folder`, and judge it."""
    return record_of(rows_of_run(config, folder))


def record_of(run: RowsOfRun) -> Record:
    """What the present detectors say of a run."""
    fatal, alerts = run.judge()
    loss = run.read(run.detectors()).loss
    model, optimizer = run.config["model"], run.config["optimizer"]
    return Record(
        layer=model["layer"]["name"],
        variant="mix",
        optimizer=run.config["tags"][1],
        map=model.get("reparameterization", {}).get("name", "native"),
        lr=optimizer["lr"],
        seed=int(run.config["name"].split("-")[1]),
        on_warning="continue",
        status="finished" if fatal is None else "diverged",
        steps=len(run.rows),
        fatal=next((alert.tensor for alert in alerts if alert.step == fatal), None),
        alerts=[(alert.kind, alert.severity, alert.step) for alert in alerts if alert.kind in KINDS and alert.lasted == 1],
        signals={LOSS: float(np.median(loss[-LAST:]) / loss[0])} if fatal is None and loss[0] > 0 else {},
    )


def write(records: Sequence[Record]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + "\n\n" + "\n".join(_lines(records)) + "\n\n" + END + tail, encoding="utf-8")


def _lines(records: Sequence[Record]) -> Iterator[str]:
    seeds = ", ".join(map(str, sorted({r.seed for r in records})))
    layers, died = list(dict.fromkeys(r.layer for r in records)), [r for r in records if r.died]
    early = sum(r.steps <= EARLY for r in died)
    yield (
        f"{len(records):,} runs of {len(layers)} layers, seeds {seeds}; {len(died)} died, {early} of them at step {EARLY} or "
        f"before. {os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}, torch {version('torch')}."
    )
    head = "recall | precision | lead | finished runs with a false critical alarm | of these, without an exploded loss |"
    yield f"\n| runs | {head}\n| --- | --- | --- | --- | --- | --- |"
    for name, own in _groups(records):
        yield _row(name, own)
    yield "\nThe same by kind of alert, over all runs:\n"
    yield f"| alert | {head}\n| --- | --- | --- | --- | --- | --- |"
    for kind in ACTING:
        yield _row(f"`{kind}`", records, kind)
    yield "\nDeaths that a critical warning announced, by layer, and the lead in steps:\n"
    yield f"| layer | {' | '.join(OPTIMIZERS)} | lead | false critical alarms |\n| --- |{' --- |' * (len(OPTIMIZERS) + 2)}"
    for layer in layers:
        own = [r for r in records if r.layer == layer]
        cells = [_caught(_found([r for r in own if r.optimizer == optimizer])) for optimizer in OPTIMIZERS]
        whole = _found(own)
        yield f"| `{layer}` | {' | '.join(cells)} | {whole.lead} | {whole.false}/{whole.lived} |"


def _groups(records: Sequence[Record]) -> Iterator[tuple[str, list[Record]]]:
    for optimizer in OPTIMIZERS:
        own = [r for r in records if r.optimizer == optimizer]
        yield optimizer, own
        yield f"{optimizer}, map `direct`", [r for r in own if r.map == "direct"]
        yield f"{optimizer}, other maps", [r for r in own if r.map != "direct"]
    yield "all", list(records)
    named = ", ".join(f"{optimizer} {rate:g}" for optimizer, rate in ORDINARY.items())
    yield f"all at ordinary rates (up to: {named})", [r for r in records if r.lr <= ORDINARY[r.optimizer]]
    yield f"all, without those that died at step {EARLY} or before", [r for r in records if not (r.died and r.steps <= EARLY)]


def _found(records: Sequence[Record], kind: str | None = None) -> Rates:
    return rates(records, _critical(kind))


def _critical(kind: str | None) -> Callable[[Record], list[int]]:
    if kind is None:
        return lambda record: record.warned
    return lambda record: [step for name, severity, step in record.alerts if name == kind and severity == "critical"]


def _row(name: str, records: Sequence[Record], kind: str | None = None) -> str:
    found, fired = _found(records, kind), _critical(kind)
    calm = sum(not r.died and bool(fired(r)) and r.signals.get(LOSS, 0.0) <= EXPLODED for r in records)
    alarms = f"{share(found.false, found.lived)} | {share(calm, found.lived)}"
    return f"| {name} | {found.recall} | {found.precision} | {found.lead} | {alarms} |"


def _caught(found: Rates) -> str:
    died = found.caught + found.missed
    return f"{found.caught}/{died}" if died else ""
