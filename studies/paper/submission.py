"""Submits the runs of a design, waits for them and for their autopsies, and takes up an interrupted reproduction again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from studies.autopsies import wait_for_autopsies
from studies.paper.catalogue import design as design_of
from studies.paper.designs import Design
from studies.paper.groups import Group, idempotency_key, new_group, read_tags, sweep_name, sweeps_of, tags
from studies.paper.registry import Registry
from studies.progress import wait_for_sweeps

if TYPE_CHECKING:
    from stablessm_core.client import Client

Report = Callable[[str], None]


def start(client: Client, design: Design, registry: Registry) -> tuple[Group, list[int]]:
    """Queue the runs of a design in a new group, one sweep for each part. Returns the group and the ids of its sweeps."""
    group = new_group(design, registry.sha256)
    return group, submit(client, design, group)


def submit(client: Client, design: Design, group: Group) -> list[int]:
    """Queue the runs of a group. A part that was submitted before is not submitted again."""
    found = []
    for part in design.parts:
        base = dict(part.base) | {"tags": tags(group, part)}
        name, key = sweep_name(group, part), idempotency_key(group, part)
        found.append(int(client.submit_sweep(base, design.grid(part), name=name, key=key)["id"]))
    return found


def take_up(client: Client, sweep_id: int) -> tuple[Design, Group, list[int]]:
    """The reproduction to which a sweep belongs, with its missing sweeps submitted and its stopped runs queued again.

    Raises ValueError if the sweep belongs to no reproduction, or if the design has changed since it was submitted.
    """
    sweep = client.sweep(sweep_id)
    read = read_tags(sweep["base"])
    if read is None:
        raise ValueError(f"sweep {sweep_id} belongs to no reproduction; expected a sweep whose runs have the tag `paper`")
    group = read[0]
    by_part = sweeps_of(client.sweeps(group.group), group.group)
    design = with_own_seeds(design_of(group.study, group.preset, group.size), by_part)
    if design.signature != group.design:
        raise ValueError(f"the design of {group.study} has changed since sweep {sweep_id} was submitted; start it again")
    missing = {part.name for part in design.parts} - set(by_part)
    ids = submit(client, design, group) if missing else [int(by_part[part.name]["id"]) for part in design.parts]
    queue_stopped(client, ids)
    return design, group, ids


def queue_stopped(client: Client, sweep_ids: list[int]) -> None:
    """Queue the cancelled and the failed runs of these sweeps again."""
    for number in sweep_ids:
        for run in client.sweep(number)["runs"]:
            if run["status"] in ("cancelled", "failed"):
                client.resume(run["id"])


def with_own_seeds(design: Design, by_part: Mapping[str, Mapping[str, Any]]) -> Design:
    """The design with the number of seeds of its stored sweeps. Parts with a fixed number of seeds do not tell it."""
    for part in design.parts:
        seeds = by_part[part.name]["grid"].get("train.seed") if part.name in by_part and part.seeds is None else None
        if seeds:
            return design.with_seeds(len(seeds))
    return design


def wait(client: Client, sweep_ids: list[int], report: Report) -> None:
    """Return when every run has ended and every death has its autopsy. `report` receives lines of progress with the time left."""
    wait_for_sweeps(client, sweep_ids, report)
    dead = [run["id"] for number in sweep_ids for run in client.sweep(number)["runs"] if run["status"] == "diverged"]
    wait_for_autopsies(client, dead, report)
