"""Trains the rounds of the study of largest stable rates, and takes up an interrupted study again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from studies.autopsies import wait_for_autopsies
from studies.paper.designs import Design
from studies.paper.groups import Group, idempotency_key, new_group, read_tags, sweep_name, tags
from studies.paper.outcomes import Source
from studies.paper.rates import NOT_JUDGED, STUDY, Searched, collect_rates, rates_design, seeds_of, sweeps_in_order
from studies.paper.registry import Registry
from studies.paper.submission import Report, queue_stopped, submit
from studies.progress import POLL_SECONDS, left, wait_for_sweeps

if TYPE_CHECKING:
    from stablessm_core.client import Client

VERDICT_SECONDS = 60.0  # a server that judges nothing for so long has stopped
Block = tuple[float, tuple[str, ...], tuple[int, ...]]  # a rate, maps and seeds that train it


def begin(design: Design, registry: Registry) -> Group:
    """A new group for this design."""
    return new_group(design, registry.sha256)


def take_up_rates(client: Client, sweep_id: int) -> tuple[Design, Group]:
    """The design and the group to which a sweep belongs, with its stopped runs queued again. Raises ValueError."""
    read = read_tags(client.sweep(sweep_id)["base"])
    if read is None or read[0].study != STUDY:
        raise ValueError(
            f"sweep {sweep_id} belongs to no search for largest rates; expected a sweep with the tag `study={STUDY}`"
        )
    group = read[0]
    own = sweeps_in_order(list(client.sweeps(group.group)), group.group)
    design = rates_design(group.size, seeds_of(own))
    if design.signature != group.design:
        raise ValueError(f"the design of {STUDY} has changed since sweep {sweep_id} was submitted; start it again")
    queue_stopped(client, [int(sweep["id"]) for sweep in own])
    return design, group


def train_rounds(client: Client, source: Source, design: Design, group: Group, report: Report) -> Searched:
    """Train rounds until every search has its rate, then the control, and wait for the autopsies of the deaths next to these
    rates and of the control. Returns what was found.

    The sweeps that the group already has are waited for first. A run that was deleted or failed is trained again.
    """
    started = time.monotonic()
    known = [int(sweep["id"]) for sweep in sweeps_in_order(list(source.sweeps()), group.group)]
    if known:
        wait_for_sweeps(client, known, report)
    trained = 0
    while True:
        found = collect_rates(source, design, group)
        proposed = found.proposed()
        if not proposed:
            break
        blocks, number = blocks_of(proposed), 1 + max((round_of(sweep["part"]) for sweep in found.sweeps), default=0)
        runs = sum(len(maps) * len(seeds) for _, maps, seeds in blocks)
        rest = left(trained, found.rounds_left, time.monotonic() - started) or f", about {design.minutes:g} min left"
        report(f"round {number}, {found.rounds_left} left with this one: {runs:,} runs{rest}")
        ids = submit_round(client, design, group, number, blocks)
        if not known:
            report(f"sweep {ids[0]} at {client.url}/sweeps; if interrupted, continue with --resume {ids[0]}")
            known = ids
        wait_for_sweeps(client, ids, report)
        trained += 1
    (control,) = submit(client, replace(design, parts=design.parts[1:]), group)
    report(f"the control with weight decay: {len(client.sweep(control)['runs']):,} runs")
    wait_for_sweeps(client, [control], report)
    found = collect_rates(source, design, group)
    wait_for_autopsies(client, found.decisive(), report)
    return _with_verdicts(lambda: collect_rates(source, design, group))


def _with_verdicts(collect: Callable[[], Searched]) -> Searched:
    """What `collect` finds once every death has a verdict. The end of an autopsy takes the verdict away, and the worker or the
    server computes a new one within seconds."""
    until = time.monotonic() + VERDICT_SECONDS
    while True:
        found = collect()
        if all(cause != NOT_JUDGED for cause, _ in found.deaths.values()) or time.monotonic() > until:
            return found
        time.sleep(POLL_SECONDS)


def submit_round(client: Client, design: Design, group: Group, number: int, blocks: Sequence[Block]) -> list[int]:
    """Queue the runs of a round, one sweep for each block. Returns the ids of the sweeps."""
    part = design.parts[0]
    found = []
    for place, (rate, maps, seeds) in enumerate(blocks, 1):
        own = replace(part, name=f"round {number}.{place}")
        grid: dict[str, list[Any]] = {
            "model": [dict(part.variants[name]) for name in maps],
            "optimizer.lr": [rate],
            "train.seed": list(seeds),
        }
        base = dict(part.base) | {"tags": tags(group, own)}
        found.append(
            int(client.submit_sweep(base, grid, name=sweep_name(group, own), key=idempotency_key(group, own))["id"])
        )  # fmt: skip
    return found


def blocks_of(proposed: Mapping[str, Mapping[int, float]]) -> list[Block]:
    """The runs of a round as full grids: the maps that train the same rate with the same seeds share a block."""
    maps: dict[tuple[float, tuple[int, ...]], list[str]] = {}
    for name, rates in proposed.items():
        for rate in set(rates.values()):
            maps.setdefault((rate, tuple(sorted(seed for seed in rates if rates[seed] == rate))), []).append(name)
    return sorted((rate, tuple(names), seeds) for (rate, seeds), names in maps.items())


def round_of(part: str) -> int:
    """The number of the round in the name of a part, such as `round 3.1`; 0 for another name."""
    match = re.fullmatch(r"round (\d+)\.\d+", part)
    return int(match[1]) if match else 0
