"""The findings of a run's autopsy, as the verdict reads them: the fatal step, trained again with instruments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stablessm_core.verdict.batches import FAR, FAR_ALONE, BadBatch

MODERATE = 1e18  # numbers below are ordinary: the sum of a few hundred of their squares fits into float32
PASSES = {"forward": "forward pass", "loss": "loss function", "backward": "backward pass", "update": "optimizer's update"}
FLOAT32_LARGEST = 3.4028235e38
CAST_TO_HALF = 65_504.0
SAME_NORM = 0.05  # relative difference up to which two norms of a gradient are the same
NEAR_LOSS = 0.1  # relative difference up to which two losses count as the same


@dataclass(frozen=True)
class WrongGradient:
    """A gradient that disagrees with its loss. norm: as the backward pass gave it. slope: by how much the loss really changes per
    unit of distance along the gradient.

    differs: None, or what makes the difference: "kernels" or "training_mode". repeated: the norm without the run's kernels.
    """

    step: int
    norm: float
    slope: float
    differs: str | None = None
    repeated: float = math.nan


@dataclass(frozen=True)
class Onset:
    """The step that first shows the trouble, compared with the step before. Numbers are NaN where nothing was measured.

    yardstick: the mean squared error or the cross entropy of the same outputs and targets. output: the largest magnitude of the
    network's output. loss_again: the loss of the same outputs, asked a second time.
    """

    step: int
    loss: float
    loss_before: float
    loss_again: float
    output: float
    output_before: float
    yardstick: float
    yardstick_before: float
    yardstick_name: str


class FormCheck(NamedTuple):
    """Whether a layer computes its recorded form with the weights of the fatal step. error: relative."""

    layer: int
    agrees: bool | None
    error: float


@dataclass(frozen=True)
class Autopsy:
    """The findings of an autopsy that has a result for the fatal step."""

    findings: Mapping[str, Any]

    @property
    def first(self) -> Mapping[str, Any] | None:
        """The first result that is not finite, in the order of computation."""
        return self.findings.get("first_nonfinite")

    @property
    def float64(self) -> Mapping[str, Any] | None:
        return self.findings.get("float64")

    @property
    def place(self) -> str | None:
        """The pass of the first result that is not finite: "forward", "loss", "backward" or "update"."""
        return None if self.first is None else str(self.first["pass"])

    @property
    def input_of_first(self) -> float:
        """The largest number that went into the first operation with a non-finite result."""
        return number_of((self.first or {}).get("largest_input"))

    @property
    def largest(self) -> float:
        """The largest true magnitude of any module's result: in float64 if the step was repeated in float64. NaN if unknown."""
        modules = self.findings.get("modules") or ()
        exact = [number_of(one.get("largest_float64")) for one in modules]
        known = [x for x in exact if not math.isnan(x)] or [number_of(one.get("largest")) for one in modules]
        known = [x for x in known if not math.isnan(x)]
        return max(known) if known else number_of((self.float64 or {}).get("largest"))

    @property
    def fits_float32(self) -> bool:
        """Whether float32 can hold the true results of every module and their squares, so that only arithmetic can have made
        the number that is not finite."""
        repeat = self.float64
        if repeat is None or not repeat.get("finite") or not self.largest < MODERATE or self.input_of_first >= MODERATE:
            return False
        recorded, repeated = number_of(self.findings.get("loss")), number_of(repeat.get("loss"))
        return not math.isfinite(recorded) or abs(repeated - recorded) <= NEAR_LOSS * max(abs(recorded), 1e-6)

    @property
    def from_ordinary_numbers(self) -> bool:
        """Whether finite numbers below MODERATE went into the operation that made the first number that is not finite."""
        if math.isnan(self.input_of_first):  # nothing finite went in, or nothing at all
            return self.largest < MODERATE
        return self.input_of_first < MODERATE

    @property
    def wrong_gradient(self) -> WrongGradient | None:
        """The gradient that disagrees with its loss. None if it agrees, or if nothing was proved: a slope that has not converged
        proves nothing, and neither do findings from before slopes had to converge."""
        one = self.findings.get("gradient") or {}
        if not one.get("converged"):
            return None
        step, norm, slope = int(one["step"]), number_of(one["norm"]), number_of(one.get("slope"))
        recorded, differs = number_of(one.get("recorded")), one.get("differs")
        if one.get("agrees") is False and differs != "training_mode":
            return WrongGradient(step, norm, slope)
        if differs == "training_mode" or (differs == "kernels" and one.get("agrees") and self._recorded_is_wrong(one)):
            return WrongGradient(
                step, norm if differs == "training_mode" else recorded, slope, differs, number_of(one.get("repeated"))
            )
        return None

    def _recorded_is_wrong(self, one: Mapping[str, Any]) -> bool:
        """Whether the recorded norm differs by more than a tenth, while float32 and float64 agree without the run's kernels."""
        recorded, repeated, norm = (number_of(one.get(name)) for name in ("recorded", "repeated", "norm"))
        return (
            abs(repeated / norm - 1) <= SAME_NORM and abs(recorded / repeated - 1) > 2 * SAME_NORM if norm and repeated else False
        )

    @property
    def gradient_agrees(self) -> bool:
        """Whether a slope that converged shows that the backward pass is right, with the recorded norm."""
        one = self.findings.get("gradient") or {}
        return bool(one.get("converged")) and bool(one.get("agrees")) and self.wrong_gradient is None

    @property
    def onset(self) -> Onset | None:
        """The step that first shows the trouble; None if it was not measured."""
        one = self.findings.get("onset")
        if not one:
            return None
        known = {name: number_of(one.get(name)) for name in Onset.__dataclass_fields__ if name not in ("step", "yardstick_name")}
        classes = (one.get("batch") or {}).get("classes")
        name = "mean squared error" if classes is None else "cross entropy"
        return Onset(step=int(one["step"]), yardstick_name=name, **known)

    @property
    def classes(self) -> Mapping[str, Any] | None:
        """{smallest, largest, ignored, count, of} of the fatal batch's targets; None if they are no classes."""
        return (self.findings.get("batch") or {}).get("classes")

    @property
    def forms(self) -> tuple[FormCheck, ...]:
        checks = self.findings.get("form") or ()
        return tuple(FormCheck(int(one["layer"]), one.get("agrees"), number_of(one.get("error"))) for one in checks)

    def largest_state(self, layer: int) -> int | None:
        """The eigenvalue with the largest state of this layer, by the float64 repeat; None if it was not measured."""
        for one in (self.float64 or {}).get("states") or ():
            if one["layer"] == layer:
                return int(one["eigenvalue"])
        return None

    @property
    def bad_batch(self) -> BadBatch | None:
        """The batch of the instrumented step, if it is not finite or far above usual."""
        batch = self.findings.get("batch") or {}
        step = int(self.findings["step"])
        which = (1 if batch.get("nonfinite_input") else 0) + (2 if batch.get("nonfinite_target") else 0)
        if which or batch.get("nonfinite"):
            return BadBatch(step=step, which=which or 3, finite=False)
        for bit, part in ((1, "input"), (2, "target")):
            largest, usual = (number_of(batch.get(f"{kind}_{part}")) for kind in ("largest", "usual"))
            if largest >= FAR_ALONE or (usual > 0 and largest >= FAR * usual):
                return BadBatch(step=step, which=bit, finite=True, largest=largest, usual=usual if math.isfinite(usual) else None)
        return None

    def counterfactual(self, change: str) -> Mapping[str, Any] | None:
        """The counterfactual with this change; None if it was not tried."""
        for one in self.findings.get("counterfactuals") or ():
            if one["change"] == change and one.get("lives") is not None:
                return one  # type: ignore[no-any-return]
        return None

    def lives(self, change: str) -> bool | None:
        """Whether the run lives with this change; None if it was not tried, or if the trials cannot be compared with the run."""
        one = self.counterfactual(change)
        return None if one is None or not self.comparable else bool(one["lives"])

    @property
    def comparable(self) -> bool:
        """Whether the trials repeat the run: the unchanged one died at the fatal step. Without a control they are believed."""
        unchanged = self.counterfactual("unchanged")
        if any(one.get("comparable") is False for one in self.findings.get("counterfactuals") or ()):
            return False
        return unchanged is None or (not unchanged["lives"] and int(unchanged["step"]) == int(self.findings["step"]))

    @property
    def control_step(self) -> int | None:
        """The step at which the unchanged control died if that is not the fatal step; -1 if it lives. None if it repeated the
        run, or was not tried."""
        unchanged = self.counterfactual("unchanged")
        if unchanged is None or (not unchanged["lives"] and int(unchanged["step"]) == int(self.findings["step"])):
            return None
        return -1 if unchanged["lives"] else int(unchanged["step"])


def autopsy_of(findings: Mapping[str, Any] | None, fatal_step: int) -> Autopsy | None:
    """The autopsy of the fatal step. None if there is none, if it has no result, or if it is about another step."""
    if findings is None or findings.get("refused") or not findings.get("bits_equal") or not findings.get("fatal"):
        return None
    return Autopsy(findings) if findings.get("step") == fatal_step else None


def number_of(value: Any) -> float:
    """A number of the findings, in which JSON writes non-finite numbers as text. None becomes NaN."""
    return math.nan if value is None else float(value)
