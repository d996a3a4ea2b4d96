"""Establishes by measurement why a run of a family died, for every built-in layer and without the verdict.

A planted fault is the cause if the same run without the fault lives. The cause of a death by configuration is found by training
again: with frozen eigenvalues, with frozen other weights, and with a tenth of the rate. Recorded rows tell whether an eigenvalue
was outside the boundary and whether a step size grew.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.verdicts.audit.recorded_facts import LN_LARGEST, Facts
from benchmarks.verdicts.families.drawing import FamilyPlant
from benchmarks.verdicts.recorded import Recorded, run_and_source, trained
from benchmarks.verdicts.truth import EXPLODED, FAR, GREW, SOON, NotPlanted, Truth, _of_death
from stablessm_core.verdict import Run, Source

LEARNED = 0.9  # loss at the end divided by loss at the start: below this, the run has learned something
LEARNED_NOTHING = (
    r"learn\w* (almost |next to |hardly )?(nothing|anything)|(not|hardly|barely|never) (really )?(learn|improv"
    r"|f[ae]ll|below|better|mov)"
    r"|no better than|constant prediction|as good as"
)
FROZEN = {"optimizer.recurrent_lr": 0.0}
FIRST_UPDATES = 3  # a run that dies so early died of its first updates
OUTSIDE = 0.3  # share of the overflow limit from which an eigenvalue outside can have had a part in the death


def establish_family(plant: FamilyPlant, recorded: Recorded) -> Truth:
    """The truth about a trained plant. Raises NotPlanted if the draw is no plant of its family."""
    control = None if plant.control is None else trained(plant.config, plant.control)
    if plant.causes and control is not None and not control.lives:
        raise NotPlanted(f"{plant.kind}: without the fault the run is {control.outcome.status}")
    if not recorded.died:
        if plant.must_die:
            raise NotPlanted(f"{plant.kind}: the run lives")
        return _of_survivor(plant, recorded)
    if plant.causes:
        return Truth(plant.causes, step=plant.step, mentions=plant.mentions, measured={"without_the_fault": "lives"})
    layers = recorded.config["model"].get("layers") or [recorded.config["model"]["layer"]]
    only_ours = all((one if isinstance(one, str) else one["name"]) == "stable_ssm" for one in layers)
    only_ours = only_ours and not recorded.config["model"]["reparameterization"]["name"].startswith("planted_")
    truth = _of_death(plant.config) if only_ours else _of_any_layer(recorded)
    return Truth(**{**vars(truth), "mentions": plant.mentions})


def _of_survivor(plant: FamilyPlant, recorded: Recorded) -> Truth:
    evaluated, losses = recorded.outcome.result["eval_loss"], recorded.losses
    mentions = plant.alive
    if mentions == LEARNED_NOTHING and len(losses) >= 8 and np.median(losses[-(len(losses) // 4) :]) < LEARNED * losses[0]:
        mentions = ""  # it did learn a little
    if recorded.outcome.status == "finished" and (evaluated is None or not math.isfinite(evaluated)):
        mentions = "evaluation"
    elif recorded.outcome.status == "finished" and len(losses) > 1 and losses[-1] > FAR * losses[0] > 0:
        mentions = "loss"
    measured = {"eval_loss": evaluated, "first_loss": float(losses[0]), "last_loss": float(losses[-1])} if len(losses) else {}
    return Truth(frozenset({None}), mentions=mentions, unstable=_outside_at_end(recorded), measured=measured)


def _outside_at_end(recorded: Recorded) -> bool | None:
    """Whether an eigenvalue was outside the boundary in the last recorded row; None if no distance is known."""
    run, source = run_and_source(recorded)
    last = [_last_distances(run, source, layer.index) for layer in run.layers if not layer.may_exceed]
    known = [distance for distance in last if distance is not None and np.isfinite(distance).any()]
    return any(bool((distance < 0).any()) for distance in known) if known else None


def _last_distances(run: Run, source: Source, layer: int) -> np.ndarray | None:
    rows = source.layer(layer, 1, run.step)
    return rows.distance[-1] if len(rows) else None


def _of_any_layer(recorded: Recorded) -> Truth:
    """The truth about a death by configuration of a model with any layer."""
    config = recorded.config
    complete = recorded if config["telemetry"]["every"] == 1 else trained(config, {"telemetry.every": 1})
    died_at = int(complete.outcome.step)
    own = config["optimizer"]
    recurrent = own.get("recurrent_lr") or own["lr"]
    slower = trained(config, {"optimizer.lr": own["lr"] / 10, "optimizer.recurrent_lr": recurrent / 10})
    frozen = None if own.get("recurrent_lr") == 0 else trained(config, FROZEN)
    alone = trained(config, {"optimizer.lr": 1e-12, "optimizer.recurrent_lr": recurrent, "optimizer.weight_decay": 0.0})
    outside, grown = _shares_outside(complete, died_at), _steps_grew(complete)
    measured: dict[str, Any] = {
        "died_at": died_at,
        "frozen": _ended(frozen),
        "only_recurrence": _ended(alone),
        "tenth_of_rate": _ended(slower),
        "share_of_overflow": outside,
        "dt_grew": grown,
    }
    needed = frozen is not None and (frozen.lives or frozen.outcome.step > died_at + SOON)
    suffices = not alone.lives and alone.outcome.step <= died_at + SOON
    return Truth(_causes(needed, suffices, outside, grown, died_at), measured=measured, not_thrown_by=_not_by(complete, needed))


def _causes(needed: bool, suffices: bool, outside: float, grown: float, died_at: int) -> frozenset[str | None]:
    """The right causes. needed: the run lives with frozen eigenvalues. suffices: it dies if only they are trained. outside: the
    largest share of the overflow limit. grown: by which factor the largest step size grew."""
    causes: set[str | None] = set()
    if (needed or suffices) and outside >= OUTSIDE:
        causes.add("eigenvalue_overflow")
    if (needed or suffices) and grown >= GREW:
        causes.add("step_size")
    if not needed or not causes:
        causes |= {"explosion", "lr_too_large"}
    if died_at <= FIRST_UPDATES:
        causes.add("lr_too_large")
    return frozenset(causes)


def _not_by(complete: Recorded, needed: bool) -> frozenset[str]:
    """The answers to what moved an eigenvalue that the measurements exclude."""
    finite = complete.losses[np.isfinite(complete.losses)]
    if len(finite) and finite.min() > 0 and finite[-1] / finite.min() >= EXPLODED and not needed:
        return frozenset({"optimizer_step", "gradient_spike"})
    return frozenset()


def _ended(recorded: Recorded | None) -> str | int:
    return "not trained" if recorded is None else "lives" if recorded.lives else int(recorded.outcome.step)


def _shares_outside(recorded: Recorded, died_at: int) -> float:
    """The largest share of the range of float32 that the powers of an eigenvalue use over one sequence, shortly before the end:
    length * ln|lambda| / ln(largest float32). Negative if all eigenvalues are inside."""
    facts, shares = Facts(recorded), [-1.0]
    for layer in facts.layers.values():
        closest = layer.distance[(layer.step >= died_at - 1) & (layer.step <= died_at)]
        finite = closest[np.isfinite(closest)]
        if layer.bounded and len(finite) and facts.length:
            shares.append(float(facts.length * np.log(np.maximum(1 - finite, 1e-30)).max() / LN_LARGEST))
    return max(shares)


def _steps_grew(recorded: Recorded) -> float:
    """The largest step size of the last row divided by that of the first row; 1 without step sizes."""
    grown = [1.0]
    for name in recorded.sink.catalogue:
        if name.endswith("/dt"):
            dt = recorded.sink.series(name)[1]
            with np.errstate(all="ignore"):
                last = np.nanmax(dt[-1]) if np.isfinite(dt[-1]).any() else math.inf
                grown.append(float(last / np.nanmax(dt[0])))
    return max(grown)
