"""What became of each run of a reproduction. Three outcomes stay apart: finite, trained, and the loss.

A run that diverged counts as dead only after its fatal step has been repeated in float64 (its autopsy). `arithmetic`: float64 is
finite and float32 could hold every true number, so the precision or our code made the NaN. `unchecked`: nobody knows, because
there is no autopsy, or because it has no result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, Protocol

from stablessm_core.spec.model import Model
from stablessm_core.telemetry.statuses import OPEN
from stablessm_core.verdict.measured import autopsy_of
from studies.paper.designs import Design, Part
from studies.paper.groups import Group, sweeps_of
from studies.paper.submission import with_own_seeds

State = Literal["finite", "died", "arithmetic", "unchecked", "open", "failed"]
NUMBERS = ("eval_loss", "eval_accuracy", "train_loss")


class Source(Protocol):
    """Where sweeps, runs and autopsies are read: the client of a server, or the server's own database."""

    def sweeps(self) -> Iterable[Mapping[str, Any]]: ...
    def runs(self, sweep_id: int) -> list[Mapping[str, Any]]: ...
    def autopsy(self, run_id: int) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Outcome:
    """One run. values: its numbers by name; NaN where it has none."""

    part: str
    variant: str
    rate: float
    seed: int
    run_id: int
    state: State
    trained: bool
    values: Mapping[str, float]


@dataclass
class Collected:
    """The outcomes of a group, and sentences about what is missing or does not belong together (`problems`)."""

    design: Design
    group: Group
    seeds: int
    outcomes: list[Outcome] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)

    def of(self, part: str, variant: str, rate: float) -> dict[int, Outcome]:
        """The outcomes of one cell, by seed."""
        cell = (part, variant, rate)
        return {one.seed: one for one in self.outcomes if (one.part, one.variant, one.rate) == cell}


def collect(source: Source, design: Design, group: Group) -> Collected:
    """Read the runs of a group. `design` is the present design; a group that was submitted with another one is a problem."""
    by_part = sweeps_of(source.sweeps(), group.group)
    design = with_own_seeds(design, by_part)
    found = Collected(design, group, design.seeds)
    if design.signature != group.design:
        found.problems.append("The design of this study has changed since its runs were submitted.")
    trained: list[Mapping[str, Any]] = []
    for part in design.parts:
        trained += collect_part(found, source, part, by_part.get(part.name))
    found.versions, found.machines = trained_with(trained)
    if len(found.versions) > 1:
        found.problems.append(mixed(found.versions))
    return found


def collect_part(found: Collected, source: Source, part: Part, sweep: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Add the outcomes and the problems of one part, whose sweep this is. Returns its runs."""
    if sweep is None:
        found.problems.append(f"The sweep of the part “{part.name}” does not exist.")
        return []
    runs = source.runs(int(sweep["id"]))
    found.sweeps.append({"id": int(sweep["id"]), "part": part.name, "created_at": sweep["created_at"], "runs": len(runs)})
    read = [one for run in runs if (one := outcome_of(source, part, run)) is not None]
    found.outcomes += sorted(read, key=lambda one: (one.variant, one.rate, one.seed, one.run_id))
    found.problems += _missing(found.design, part, runs, read)
    return runs


def trained_with(runs: Iterable[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The versions and the machines of these runs, each sorted."""
    environments = [run.get("environment") or {} for run in runs]
    return sorted({*map(_version, environments)} - {""}), sorted({*map(_machine, environments)} - {""})


def mixed(versions: Sequence[str]) -> str:
    """The sentence about runs of several versions."""
    return f"Runs of several versions are mixed: {'; '.join(versions)}."


def _missing(design: Design, part: Part, runs: list[Mapping[str, Any]], read: list[Outcome]) -> list[str]:
    """Sentences about runs that the part should have, and about runs that do not belong to it."""
    expected = len(part.variants) * len(part.rates) * (part.seeds or design.seeds)
    said = []
    if len(read) < expected:
        said.append(f"{expected - len(read):,} of {expected:,} runs of the part “{part.name}” do not exist any more.")
    if len(runs) > len(read):
        said.append(f"{len(runs) - len(read):,} runs of the part “{part.name}” have settings that are not in the design.")
    for state, text in (("open", "have not ended"), ("failed", "failed or were cancelled")):
        if count := sum(one.state == state for one in read):
            said.append(f"{count:,} of {expected:,} runs of the part “{part.name}” {text}.")
    return said


def outcome_of(source: Source, part: Part, run: Mapping[str, Any]) -> Outcome | None:
    """The outcome of a run; None if its settings are not in the part."""
    config = run["config"]
    rate, seed = float(config["optimizer"]["lr"]), int(config["train"]["seed"])
    variant = next((name for name, section in part.variants.items() if _dump(section) == config["model"]), None)
    if variant is None or rate not in part.rates:
        return None
    result = run["result"] or {}
    values = {name: _number(result.get(name)) for name in NUMBERS} | {"largest_ratio": _number(run["largest_ratio"])}
    state = _state(source, run, values)
    trained = False
    if part.trained is not None and state == "finite":
        name, bound = part.trained
        trained = values[name] > bound if name == "eval_accuracy" else values[name] < bound
    return Outcome(part.name, variant, rate, seed, int(run["id"]), state, trained, values)


def _dump(section: Mapping[str, Any]) -> dict[str, Any]:
    return _complete(json.dumps(section))


@cache  # each of hundreds of runs is compared with the few sections of its part
def _complete(section: str) -> dict[str, Any]:
    """This `model` section with all of its fields, as runs store it."""
    return Model.model_validate_json(section).model_dump(mode="json")


def _state(source: Source, run: Mapping[str, Any], values: Mapping[str, float]) -> State:
    status = run["status"]
    if status in OPEN:
        return "open"
    if status == "finished":
        finite = math.isfinite(values["train_loss"]) and (run["result"] or {}).get("eval_loss") not in (
            "NaN",
            "Infinity",
            "-Infinity",
        )
        return "finite" if finite else "unchecked"
    if status != "diverged":
        return "failed"
    found = source.autopsy(int(run["id"]))
    step = (run["divergence"] or {}).get("step")
    autopsy = autopsy_of(found, step) if found.get("state") == "done" and step is not None else None
    if autopsy is None or autopsy.float64 is None or autopsy.float64.get("narrow"):
        return "unchecked"
    return "arithmetic" if autopsy.fits_float32 else "died"


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _version(environment: Mapping[str, Any]) -> str:
    versions = environment.get("versions") or {}
    return ", ".join(f"{name} {versions[name]}" for name in sorted(versions) if name != "python")


def _machine(environment: Mapping[str, Any]) -> str:
    name, threads = environment.get("device_name"), environment.get("threads")
    return f"{name}, {threads} thread{'' if threads == 1 else 's'} a run, {environment.get('precision')}" if name else ""
