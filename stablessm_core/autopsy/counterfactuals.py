"""What would have become of the run with one thing changed before the trouble: does it live, and if not, when does it die?

Every trial starts from a state of the run, usually from the one before the trouble, and trains with the run's own batches and
random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stablessm_core.autopsy.batches import ScaledBatches, usual_sizes
from stablessm_core.autopsy.bench import Bench, bench_with
from stablessm_core.autopsy.deadline import Deadline, Refused
from stablessm_core.autopsy.repeat import unfused_model
from stablessm_core.autopsy.request import Change
from stablessm_core.autopsy.safe_norms import use_scaled_norms
from stablessm_core.maps import MAPS
from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.forking import ForkError, forked_config
from stablessm_core.training.checkpoint import Checkpoint
from stablessm_core.training.forking import forked

STEPS_AFTER = 20  # a trial goes on for at least this many steps after the fatal step
POINTS = 200  # maximum number of steps whose loss is given
LOOKED_AT = 64  # number of steps since the trouble that are searched for a batch larger than usual
NO_TIME = "no time left"
PREFERRED_MAP = "best"

# by the kind of trouble: the changes in the order in which they are tried
ORDER: dict[str, tuple[Change, ...]] = {
    "batch": ("batch_left_out", "batches_scaled", "tenth_of_rate", "recurrence_frozen", "scaled_norm", "other_map", "unchanged"),
    "crossing": (
        "recurrence_frozen", "other_map", "tenth_of_rate", "batch_left_out", "batches_scaled", "scaled_norm", "unchanged",
    ),
}  # fmt: skip
USUAL_ORDER: tuple[Change, ...] = (
    "tenth_of_rate", "recurrence_frozen", "batch_left_out", "batches_scaled", "other_map", "scaled_norm", "unchanged",
)  # fmt: skip


class NotPossible(Exception):
    """The change cannot be made to this run. The message gives the reason."""


def try_changes(
    bench: Bench, start: Checkpoint, last: Checkpoint, *, fatal: int, kind: str, deadline: Deadline
) -> list[dict[str, Any]]:
    """One entry per change, as findings show it. start: the state before the trouble. last: the state before the fatal step.

    The scaled norms start from `last`: before, they would only change rounding, and rounding alone may decide when a run dies.
    """
    until = min(max(fatal + STEPS_AFTER, start.step + 2 * (fatal - start.step)), bench.config.train.steps)
    starts = {"scaled_norm": last}
    return [_tried(change, bench, starts.get(change, start), fatal, until, deadline) for change in ORDER.get(kind, USUAL_ORDER)]


def _tried(change: Change, bench: Bench, start: Checkpoint, fatal: int, until: int, deadline: Deadline) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "change": change, "settings": {}, "from_step": start.step, "lives": None, "step": start.step, "until": until,
        "reason": None, "steps": [], "loss": [],
    }  # fmt: skip
    if deadline.passed():
        return entry | {"reason": NO_TIME}
    try:
        trial, entry["settings"] = CHANGES[change](bench, start)
        return entry | _trained(trial, fatal if change == "unchanged" else until, deadline)
    except NotPossible as error:
        return entry | {"reason": str(error)}
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - one trial that fails, for example for lack of memory, must not cost the others
        return entry | {"reason": f"it failed: {type(error).__name__}: {error}"}
    finally:
        bench.change_rates(1.0)


def _trained(trial: Bench, until: int, deadline: Deadline) -> dict[str, Any]:
    """Train the trial until it dies or lives to `until`."""
    steps: list[int] = []
    losses: list[float] = []
    lives: bool | None = None
    reason = None
    while lives is None:
        if trial.progress.step >= until:
            lives = True
            break
        if deadline.passed():
            reason = NO_TIME
            break
        for row in trial.train(until):
            steps.append(row.step)
            losses.append(float(row.loss))
            if not row.finite:
                lives = False
                break
    every = -(-len(steps) // POINTS) or 1
    shown = sorted({*range(0, len(steps), every), len(steps) - 1} - {-1})[-POINTS:]
    return {
        "lives": lives,
        "step": steps[-1] if steps else trial.progress.step,
        "until": until,
        "reason": reason,
        "steps": [steps[i] for i in shown],
        "loss": [losses[i] for i in shown],
    }


Trial = tuple[Bench, dict[str, Any]]  # the changed bench, and the settings that the change corresponds to


def _unchanged(bench: Bench, start: Checkpoint) -> Trial:
    bench.restore(start)
    return bench, {}


def _batch_left_out(bench: Bench, start: Checkpoint) -> Trial:
    bench.leave_out(start)
    return bench, {}


def _batches_scaled(bench: Bench, start: Checkpoint) -> Trial:
    batches = ScaledBatches(bench.batches, usual_sizes(bench, start.step))
    last = min(start.step + LOOKED_AT, bench.config.train.steps)
    if not any(batches.scales(step) for step in range(start.step + 1, last + 1)):
        raise NotPossible("no batch since then is larger than usual")
    trial = replace(bench, batches=batches)
    trial.restore(start)
    return trial, {}


def _recurrence_frozen(bench: Bench, start: Checkpoint) -> Trial:
    if bench.config.optimizer.recurrent_lr == 0:
        raise NotPossible("the run's recurrence is frozen already")
    if not bench.change_rates(math.inf, group="recurrent"):
        raise NotPossible("the model has no trained eigenvalues")
    bench.restore(start)
    return bench, {"optimizer.recurrent_lr": 0.0}


def _tenth_of_rate(bench: Bench, start: Checkpoint) -> Trial:
    optimizer = bench.config.optimizer
    bench.change_rates(10.0)
    bench.restore(start)
    own = {} if optimizer.recurrent_lr is None else {"optimizer.recurrent_lr": optimizer.recurrent_lr / 10}
    return bench, {"optimizer.lr": optimizer.lr / 10} | own


def _other_map(bench: Bench, start: Checkpoint) -> Trial:
    on_host = Checkpoint(start.step, {path: t.cpu() for path, t in start.tensors.items()}, start.state)
    reasons = []
    for name in sorted((name for name, map_ in MAPS.items() if map_.guarded), key=lambda name: name != PREFERRED_MAP):
        path = "model.reparameterization.name"
        try:
            config, changes = forked_config(bench.config.model_dump(mode="json"), {path: name})
            if path not in changes or _maps(config) == _maps(bench.config):
                continue
            model = build_model(config, bench.task, scan_backend=bench.numerics.model_backend)
            trial = bench_with(bench, model, config)
            changed, _ = forked(on_host, config, trial.model, trial.records)
        except (ConfigError, ForkError) as error:
            reasons.append(str(error))
            continue
        trial.restore(changed)
        return trial, {path: name}
    raise NotPossible(reasons[0] if reasons else "no layer of the model has a map that can be chosen")


def _maps(config: RunConfig) -> list[Any]:
    return [config.model.map_of(section) for section in config.model.sections()]


def _scaled_norm(bench: Bench, start: Checkpoint) -> Trial:
    model = unfused_model(bench)
    if not use_scaled_norms(model):
        raise NotPossible("the model has no norm that could be scaled")
    trial = bench_with(bench, model, bench.config)
    trial.restore(start)
    return trial, {}


CHANGES: dict[Change, Callable[[Bench, Checkpoint], Trial]] = {
    "unchanged": _unchanged,
    "recurrence_frozen": _recurrence_frozen,
    "batch_left_out": _batch_left_out,
    "batches_scaled": _batches_scaled,
    "tenth_of_rate": _tenth_of_rate,
    "other_map": _other_map,
    "scaled_norm": _scaled_norm,
}
