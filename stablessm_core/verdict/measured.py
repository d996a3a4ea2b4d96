"""The findings of a run's autopsy, as the verdict reads them: the fatal step, trained again with instruments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stablessm_core.verdict.batches import FAR, FAR_ALONE, BadBatch

MODERATE = 1e18  # a number and the sum of a few hundred squares of such numbers fit into float32
FLOAT32_LARGEST = 3.4028235e38
CAST_TO_HALF = 65_504.0
NEAR_LOSS = 0.1  # relative difference up to which two losses count as the same


@dataclass(frozen=True)
class WrongGradient:
    """A gradient that disagrees with its loss. norm: as the backward pass gave it. slope: how fast the loss really changes."""

    step: int
    norm: float
    slope: float


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
    def wrong_gradient(self) -> WrongGradient | None:
        """The gradient with which the trouble began, if it is far larger than the loss allows. None if it is right or unknown."""
        found = self.findings.get("gradient") or {}
        if found.get("agrees") is not False:
            return None
        return WrongGradient(int(found["step"]), number_of(found["norm"]), abs(number_of(found["slope"])))

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
        """Whether the run lives with this change; None if it was not tried, or if the unchanged replay lives too."""
        one, unchanged = self.counterfactual(change), self.counterfactual("unchanged")
        if one is None or (unchanged is not None and unchanged["lives"]):
            return None
        return bool(one["lives"])


def autopsy_of(findings: Mapping[str, Any] | None, fatal_step: int) -> Autopsy | None:
    """The autopsy of the fatal step. None if there is none, if it has no result, or if it is about another step."""
    if findings is None or findings.get("refused") or not findings.get("bits_equal") or not findings.get("fatal"):
        return None
    return Autopsy(findings) if findings.get("step") == fatal_step else None


def number_of(value: Any) -> float:
    """A number of the findings, in which JSON writes non-finite numbers as text. None becomes NaN."""
    return math.nan if value is None else float(value)
