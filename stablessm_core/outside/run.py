"""The methods of a reported run that a program calls.

After the start of the run, nothing here raises into the program, and nothing waits for the network or for a device.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec

from stablessm_core.outside.eigenvalues import Eigenvalues, StepSize
from stablessm_core.outside.endings import cause_of
from stablessm_core.outside.life import RunLife, described
from stablessm_core.outside.metrics import MetricReader, as_step
from stablessm_core.telemetry.detectors.alert import Severity
from stablessm_core.telemetry.detectors.raised_elsewhere import REPORTED
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.statuses import FINAL

P = ParamSpec("P")

LEVELS: dict[str, Severity] = {
    "info": "warning",
    "warn": "warning",
    "warning": "warning",
    "error": "critical",
    "critical": "critical",
}
REPORTING = ("loss", "log", "alert")  # the methods that report values


def _quiet(method: Callable[P, None]) -> Callable[P, None]:
    """Make a method report an error in one sentence instead of raising it, and do nothing after the end of the run."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        run: Any = args[0]
        if not run._live:
            if run.forked and method.__name__ in REPORTING:
                run.count_in_child()
            return
        if method.__name__ in REPORTING:
            run._calls, run.thread = run._calls + 1, threading.get_ident()
        try:
            method(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            run.say(f"{method.__name__} failed ({type(error).__name__}: {error}); training goes on")

    return call


class Run(RunLife):
    """A reported run. Make one with `stablessm.watch` or `stablessm.log_only`; use it as a context manager, or call `finish`.

    id: its UUID. path: its file; None if the mode is "disabled" or the disk failed. url: its page; None until the server has
    answered.
    """

    @property
    def should_stop(self) -> bool:
        """True after somebody has pressed Cancel on the run's page. The loop may then end."""
        return self._uplink is not None and self._uplink.stop_requested

    @functools.cached_property
    def _metric_reader(self) -> MetricReader:
        return MetricReader(self.say)

    @_quiet
    def loss(self, loss: Any) -> None:
        """Report the loss of a step: a number, or a tensor with one number on any device. Never waits for the device."""
        if self.counts_logs:
            self._log({"train/loss": loss}, None)
        elif self._recording is not None:
            self._recording.loss(loss if hasattr(loss, "numel") else float(loss))
            self._take_over_losses()

    @_quiet
    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Report numbers under names of your own. step: any whole number from 0; None means the optimizer's current step, or
        without an optimizer the step after the last one."""
        self._log(values, step)

    def _log(self, values: Mapping[str, Any], step: int | None) -> dict[str, Any]:
        """Keep the numbers for the next message. Returns them by their flat names."""
        if not isinstance(values, Mapping):
            self.say(f"log received a {type(values).__name__}; a dictionary of numbers is needed")
            return {}
        if step is None:
            if self.counts_logs:
                self._log_step += 1
            step = self.step
        elif (whole := as_step(step)) is None:
            self.say(f"log received the step {str(step)[:40]!r}; whole numbers from 0 are allowed")
            return {}
        else:
            step = whole
            if self._recording is None:
                self._log_step = max(self._log_step, step)
        if found := self._metric_reader.read(values):
            self._logged.append((step, found))
        return found

    @_quiet
    def alert(self, title: str, text: str = "", level: str = "warning") -> None:
        """Raise an alert on the run's page. level: "info", "warning" or "error"."""
        severity = LEVELS.get(str(level).lower(), "warning")
        message = f"{title}: {text}" if text else str(title)
        alert = REPORTED.alert(step=self.step, message=message[:2000])
        self._alerts.append(replace(alert, severity=severity, tensor=str(title)[:200]))

    @_quiet
    def eigenvalues(
        self,
        name: str,
        *,
        weight: Any,
        map: str,
        time: str,
        step: StepSize | float | None = None,
        imag: Any = None,
        a: float = 1.0,
        b: float = 0.5,
    ) -> None:
        """Watch a parameter that no table knows; call it before the first optimizer step.

        name: how the page names it. weight: the parameter. map, time: how its eigenvalues follow, such as "exp" and
        "continuous". step: the step sizes in continuous time: a number, or `stablessm.softplus(parameter)`. imag: the parameter
        with the imaginary parts.
        """
        from stablessm_core.outside.modules import Layer
        from stablessm_core.outside.sharded import is_sharded

        if self._recording is None:
            self.say("eigenvalues needs a model: call stablessm.watch")
            return
        phase = None if imag is None else "imaginary" if time == "continuous" else "radians"
        dt = "dt" if isinstance(step, StepSize) else None if step is None else float(step)
        form = Form(map, time, "none" if time == "discrete" else "zoh", a=a, b=b, dt=dt, phase=phase)
        found = Eigenvalues(weight, form, step if isinstance(step, StepSize) else None, imag)
        if trouble := "the parameter is sharded; declare it with `layers`" if is_sharded(weight) else found.problem():
            self.say(f"eigenvalues {name!r}: {trouble}; it is not watched")
            return
        layer = Layer("explicit", str(name)[:200], found)
        if not self._recording.add(layer):
            self.say(f"eigenvalues {name!r} came after the first step; it is not watched")
            return
        self._layers.append(described(layer))
        opening = self._opening()
        if self._outbox.reopen(opening) and self._uplink is not None:
            self._uplink.open_again(opening)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
        """Clip the gradients with torch's function of this name, and record their norm before the clipping."""
        import torch

        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm, *args, **kwargs)
        self._clipped(norm)
        return norm

    @_quiet
    def gradient_is(self, gradient: str) -> None:
        """State what the recorded gradients are, before the first step: "raw", "clipped" or "unknown"."""
        if self._recording is not None and self.gathering is None and gradient in ("raw", "clipped", "unknown"):
            self._recording.gradient = gradient

    @_quiet
    def take_gradients(self, optimizer: Any) -> None:
        """Record the gradients of the next step of `optimizer` as they are now. Call it before you clip them."""
        from stablessm_core.outside.hook import torch_optimizers

        if self._recording is not None and self.gathering is None:  # sharded gradients are gathered at the step
            self._recording.take_ahead(torch_optimizers(optimizer)[0])

    @_quiet
    def _clipped(self, norm: Any) -> None:
        if self._recording is not None:
            self._recording.clipped(norm)

    def finish(self, status: str = "finished", reason: str = "") -> None:
        """End the run. status: "finished", "failed", "diverged" or "cancelled". Takes at most 5 seconds if the server is away."""
        if status not in FINAL:
            self.say(f"finish received the status {status!r}; allowed: {', '.join(FINAL)}")
            status = "finished"
        self.end(status, reason)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(*("finished", "") if kind is None else cause_of(kind, error))
