"""Reproductions with planted outcomes: the sweeps, runs and autopsies that a server would return for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stablessm_core.spec.model import Model
from studies.paper.catalogue import design
from studies.paper.designs import Design
from studies.paper.groups import Group, sweep_name, tags
from studies.paper.outcomes import Collected, collect
from studies.paper.registry import Registry, load, short

Fate = Callable[[str, float, int], str]  # variant, rate, seed -> finite | died | arithmetic | unchecked | open | failed
VERSIONS = {"stablessm": "1.0", "torch": "2.0"}


@dataclass
class Planted:
    """The rows of a reproduction (`studies.paper.outcomes.Source`)."""

    rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    listed: list[dict[str, Any]] = field(default_factory=list)
    fates: dict[int, str] = field(default_factory=dict)

    def sweeps(self) -> list[dict[str, Any]]:
        return self.listed

    def runs(self, sweep_id: int) -> list[Mapping[str, Any]]:
        return list(self.rows[sweep_id])

    def autopsy(self, run_id: int) -> dict[str, Any]:
        fate = self.fates[run_id]
        if fate == "unchecked":
            return {"state": "none"}
        largest = 10.0 if fate == "arithmetic" else 1e200
        float64 = {"finite": fate == "arithmetic", "loss": 1.0, "largest": largest, "narrow": [], "first_nonfinite": None}
        module = {"module": "blocks.0", "pass": "forward", "largest": largest, "largest_float64": largest, "nonfinite": 1}
        return {
            "state": "done", "refused": None, "bits_equal": True, "fatal": True, "step": 5, "loss": "NaN", "float64": float64,
            "modules": [module], "first_nonfinite": None,
        }  # fmt: skip


def group_of(plan: Design, registry: Registry) -> Group:
    return Group(plan.study, plan.preset, plan.size, plan.signature, short(registry.sha256), "abc123", "0a0b0c0d")


def planted(
    fate: Fate, *, study: str = "table2", preset: str | None = "paper", seeds: int = 12, loss: float = 0.5
) -> tuple[Planted, Design, Group]:
    """A complete reproduction whose runs ended as `fate` says. The loss grows a little with the seed."""
    plan = design(study, preset, "full", seeds)
    registry = load()
    group, source, number = group_of(plan, registry), Planted(), 0
    for place, part in enumerate(plan.parts, 1):
        base = dict(part.base) | {"tags": tags(group, part)}
        source.listed.append(
            {"id": place, "name": sweep_name(group, part), "base": base, "grid": plan.grid(part), "created_at": 1.0}
        )
        rows = source.rows[place] = []
        for variant, section in part.variants.items():
            for rate in part.rates:
                for seed in range(part.seeds or seeds):
                    number += 1
                    source.fates[number] = fate(variant, rate, seed)
                    rows.append(run_row(number, section, rate, seed, source.fates[number], loss + seed / 1000))
    return source, plan, group


def run_row(number: int, section: Mapping[str, Any], rate: float, seed: int, fate: str, loss: float) -> dict[str, Any]:
    status = {"finite": "finished", "open": "running", "failed": "failed"}.get(fate, "diverged")
    result = {"train_loss": loss, "eval_loss": loss, "eval_accuracy": 0.9} if fate == "finite" else None
    config = {"model": Model.model_validate(section).model_dump(mode="json"), "optimizer": {"lr": rate}, "train": {"seed": seed}}
    return {
        "id": number, "status": status, "config": config, "result": result, "largest_ratio": 0.1 + seed / 1000,
        "divergence": {"step": 5} if status == "diverged" else None,
        "environment": {"versions": VERSIONS, "device_name": "a CPU", "threads": 1, "precision": "float32"},
    }  # fmt: skip


def collected(fate: Fate, **more: Any) -> Collected:
    source, plan, group = planted(fate, **more)
    return collect(source, plan, group)


def all_finite(_variant: str, _rate: float, _seed: int) -> str:
    return "finite"
