"""Records a foreign model: takes a row at each optimizer step and passes it to the recorder.

The recorder starts at the first step, because only then is it known whether the loop reports a loss, and on which device the
model lives. Loops report the loss before or after the optimizer's step. The first step shows which: a loss that is given right
after it belongs to the step that has just been taken.
"""

from __future__ import annotations

import math
import platform
import threading
import weakref
from collections.abc import Callable, Sequence
from enum import Enum, auto
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stablessm_core.outside.columns import Columns, WatchedLayer
from stablessm_core.outside.hook import OptimizerFinder, StepHooks
from stablessm_core.outside.modules import Layer
from stablessm_core.outside.rows import StagedRow
from stablessm_core.outside.sharded import origin
from stablessm_core.outside.sink import OutsideSink
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Detectors
from stablessm_core.telemetry.detectors.registry import THRESHOLDS
from stablessm_core.telemetry.detectors.steps import Steps, steps_of
from stablessm_core.telemetry.reported_rows import OutsideReader
from stablessm_core.watch.flusher import Expansion
from stablessm_core.watch.recorder import Recorder

FLUSH_SECONDS = 0.15
RING_BYTES = 1 << 26  # memory of the rows that wait for the flush thread
FLUSH_STEPS = 256
NO_GRADIENT_STEPS = 100
ABANDON_SECONDS = 0.7  # that the flush thread has for the batch that it works on, when time is up


class LossOrder(Enum):
    """When the loop reports the loss of a step."""

    BEFORE = auto()  # before the optimizer's step
    AFTER = auto()
    NEVER = auto()


class Recording:
    """The rows of one run.

    optimizers: if there are none, the one that takes the first step with a watched parameter is found, and passed to `found`.
    layers: what is watched. first_step: called at the first step, returns the number of steps that were done before. say:
    receives sentences for the user. gradient: what the recorded gradients are, a key of `telemetry.gradients.GRADIENTS`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        layers: Sequence[Layer],
        sink: OutsideSink,
        *,
        every: int,
        first_step: Callable[[], int],
        say: Callable[[str], None],
        found: Callable[[Optimizer], None] = lambda _: None,
    ) -> None:
        self.layers = list(layers)
        self.step = 0
        self._committed = 0  # the last step whose row the recorder has
        self.gradient = "unknown"
        self._sink, self._every, self._first_step, self._say, self._on_found = sink, every, first_step, say, found
        self._lock = threading.RLock()
        self._row: StagedRow | None = None
        self._watched: list[WatchedLayer] = []
        self._unowned: set[int] = set()  # the layers whose weight no known optimizer trains, such as an averaged copy
        self._recorder: Recorder | None = None
        self._kept: tuple[int, dict[str, float]] = 0, {}  # `dropped` and `latest` after the end
        self._order: LossOrder | None = None
        self._loss: float | Tensor | None = None
        self._losses = 0
        self._norm: Tensor | None = None
        self._has_norm = False
        self._pending = self._ended = False
        self._seen: set[int] = set()
        self._without_gradient = 0
        self._stream: Any = None
        parameter = next(iter(model.parameters()), None)
        self._model_device = torch.device("cpu") if parameter is None else parameter.device
        self._tensors: list[Tensor] = []
        self._attach(optimizers)
        self._finder: OptimizerFinder | None = None
        if not optimizers:
            watched = [t for layer in layers for t in layer.eigenvalues.tensors if t.requires_grad]
            self._finder = OptimizerFinder(watched or model.parameters(), self._found, self.take, self.failed)
        self._finalizer = weakref.finalize(model, self._model_gone)
        self._finalizer.atexit = False

    def _attach(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = [weakref.ref(o) for o in optimizers]
        self._hooks = StepHooks(optimizers, self.take, self.failed)

    # ---- the training thread ----

    def _found(self, optimizers: list[Optimizer]) -> None:
        if not self._ended:
            self._hooks.remove()
            self._attach(optimizers)
            self._on_found(optimizers[0])

    def take(self, owner: int, optimizer: Optimizer, *, skipped: bool) -> None:
        """Take the row of the step that `optimizer` is about to do, or that a scaler has skipped. Never raises."""
        if self._ended:
            return
        try:
            with self._lock:
                self._take(owner, optimizer, skipped=skipped)
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            self.failed(error)
        except BaseException:  # Ctrl-C or SIGTERM in here: the optimizer will not do this step
            if not self._seen and not self._pending:
                self.step = self._committed
            raise

    def _take(self, owner: int, optimizer: Optimizer, *, skipped: bool) -> None:
        if self._row is None:
            self._prepare()
            if self._ended:  # nobody knows the number of this step
                return
        if owner not in self._owners:  # it trains no watched weight
            return
        row = self._row_for(owner)
        if row is None:
            return
        if not self._seen:
            self.step += 1
        if owner in self._hooks.ahead:
            self._hooks.ahead.discard(owner)
            if skipped:
                row.set_skipped()
        else:
            scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
            row.take(owner, self._lr(optimizer, owner), scale, found if isinstance(found, Tensor) else skipped, self._norm)
        self._norm = None
        self._count_missing(row)
        self._seen.add(owner)
        if self._seen >= self._owners:
            self._complete()

    def take_ahead(self, optimizer: Optimizer) -> None:
        """Copy the gradients of the step that `optimizer` does next, before the loop clips them. Never raises."""
        try:
            with self._lock:
                if self._finder is not None:
                    self._finder.search(optimizer)
                owner = self._hooks.number_of(optimizer)
                if self._ended or owner is None or owner in self._hooks.ahead:
                    return
                if self._row is None:
                    self._prepare()
                if not self._ended and owner in self._owners and (row := self._row_for(owner)) is not None:
                    row.take(owner, self._lr(optimizer, owner), None, False, None)
                    self._hooks.ahead.add(owner)
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            self.failed(error)

    def _row_for(self, owner: int) -> StagedRow | None:
        """The row, free for the next numbers of this optimizer; None if the model has moved away from it."""
        if owner in self._seen:  # another optimizer has not stepped
            self._complete()
        if not self._seen and self._pending:  # no loss came for the step before
            if self._order is None:
                self._start(LossOrder.NEVER)
            self._commit()
        row = self._row
        assert row is not None
        if self._tensors and self._tensors[0].device != row.row.device:
            self.stop(
                f"the model moved to {self._tensors[0].device} while it was watched; its eigenvalues are not recorded any more"
            )
            return None
        return row

    def _complete(self) -> None:
        self._seen.clear()
        if self._order is None and self._losses:
            self._start(LossOrder.BEFORE)
        if self._order in (LossOrder.BEFORE, LossOrder.NEVER):
            self._put_loss()
            self._commit()
        else:
            self._pending = True

    def _put_loss(self) -> None:
        if self._losses and self._row is not None and self._loss is not None:
            self._row.set_loss(self._loss / self._losses if self._losses > 1 else self._loss)
        self._loss, self._losses = None, 0

    def _commit(self) -> None:
        if self._recorder is not None and self._row is not None and self._committed < self.step:
            self._recorder.record(self.step, self._row.row)
            self._committed = self.step
        self._pending = False

    def loss(self, loss: float | Tensor) -> None:
        """The loss of the current step. Several losses before one optimizer step are averaged."""
        with self._lock:
            if self._ended:
                return
            if isinstance(loss, Tensor):
                loss = loss.detach()
                if loss.numel() != 1 or loss.is_complex():
                    self._say(f"loss has the shape {tuple(loss.shape)}; a single number is needed")
                    return
                # before the first step, the model may not be where it was at `watch`
                if loss.device.type != "cpu" and self._row is not None and loss.device != self._row.row.device:
                    self._say(f"loss lives on {loss.device}, the model on {self._row.row.device}; it is not recorded")
                    return
                loss = loss.to(torch.float32, copy=True).reshape(())  # the loop may change its tensor in place
            if self._order is LossOrder.NEVER:
                self._say("the first loss came after the second step; the loss is not recorded")
                return
            self._loss = loss if self._loss is None else self._loss + loss
            self._losses += 1
            if self._pending and self._order in (None, LossOrder.AFTER):
                if self._order is None:
                    self._start(LossOrder.AFTER)
                self._put_loss()
                self._commit()

    def clipped(self, norm: Tensor) -> None:
        """The norm of all gradients before the clipping of the next step."""
        with self._lock:
            if self._recorder is None:
                self.gradient, self._has_norm = "clipped", True
            self._norm = norm.detach().reshape(())

    def add(self, layer: Layer) -> bool:
        """Watch one more layer. False if the first step has been taken."""
        with self._lock:
            if self._row is not None:
                return False
            self.layers.append(layer)
            return True

    # ---- other threads ----

    def tick(self) -> None:
        """Start sending the rows that have waited long enough, also if no further step comes."""
        recorder = self._recorder
        if recorder is None or not recorder.ring.rows:
            return
        with self._lock:
            if self._ended:
                return
            if self._stream is not None:
                with torch.cuda.stream(self._stream):
                    recorder.flush_if_due()
            else:
                recorder.flush_if_due()

    def stop(self, why: str) -> None:
        """Record no more rows, for a reason that the user reads."""
        if not self._ended:
            self._ended = True
            self._say(why)

    def failed(self, error: BaseException) -> None:
        """An error of our own inside the user's loop. The first one is reported, and recording ends."""
        self.stop(
            f"recording failed ({type(error).__name__}: {error}); the eigenvalues are not recorded any more, training goes on"
        )

    def finish(self, seconds: float) -> None:
        """Record what was taken and wait until it is written, for at most `seconds`."""
        if not self._lock.acquire(timeout=seconds):
            return
        try:
            if not self._ended:
                if self._finder is not None and self._finder.searching:
                    self._say("no torch optimizer has trained the watched model; nothing of it is recorded")
                if self._seen:
                    self._complete()
                if self._pending:
                    if self._order is None:
                        self._start(LossOrder.NEVER)
                    self._commit()
        finally:  # also after an error of the device
            self._release()
            self._lock.release()
            self._close(seconds)

    def _close(self, seconds: float) -> None:
        if self._recorder is not None:
            ends = monotonic() + seconds
            self._recorder.wait_for_room(seconds)
            if not self._recorder.close(max(0.05, ends - monotonic())):
                self._recorder.abandon(ABANDON_SECONDS)
            self._kept = self._recorder.dropped, self._recorder.latest
            self._recorder = None  # with its ring

    def _release(self) -> None:
        self._ended = True
        self._hooks.remove()  # not in `stop`, because the optimizer may be calling its hooks
        if self._finder is not None:
            self._finder.remove()
        self._finalizer.detach()
        self._tensors, self._row = [], None
        self.layers, self._watched = [], []  # nothing of the model is kept alive
        vars(self).pop("_columns", None)

    def become_inert(self) -> None:
        """Do nothing in a forked child."""
        self._ended = True

    @property
    def dropped(self) -> int:
        """Steps whose numbers were lost."""
        return self._kept[0] if self._recorder is None else self._recorder.dropped

    @property
    def latest(self) -> dict[str, float]:
        """The last values of the scalar series."""
        found = self._kept[1] if self._recorder is None else self._recorder.latest
        if self._order is not LossOrder.NEVER:
            return found
        return {name: value for name, value in found.items() if name != names.TRAIN_LOSS}  # nobody reported a loss

    def _model_gone(self) -> None:
        self.stop("the watched model was deleted")

    # ---- the first step ----

    def _prepare(self) -> None:
        """Lay out the row."""
        self.step = self._committed = self._first_step()
        tensors: dict[int, Tensor] = {}
        device = next((t.device for layer in self.layers for t in layer.eigenvalues.tensors), self._model_device)
        for layer in list(self.layers):
            own = layer.eigenvalues.tensors
            if any(t.device != device for t in own):
                self._say(f"{layer.path} lives on {own[0].device}, other layers on {device}; it is not recorded")
                self.layers.remove(layer)
                continue
            tensors |= {id(t): t for t in own}
        owners = {id(p): number for number, o in self._live_optimizers() for g in o.param_groups for p in g["params"]}
        self._tensors = list(tensors.values())
        of = [owners.get(origin(t), 0) for t in self._tensors]
        self._owners = set(of) or {0}
        self._row = StagedRow(self._tensors, of, device)
        at = dict(zip(tensors, self._row.places, strict=True))
        self._watched = []
        paths: dict[int, str] = {}
        self._unowned = {number for number, layer in enumerate(self.layers) if origin(layer.eigenvalues.weight) not in owners}
        for number, layer in enumerate(self.layers):
            e = layer.eigenvalues
            imag, step = (None if t is None else at[id(t)] for t in (e.imag, None if e.step is None else e.step.weight))
            self._watched.append(WatchedLayer(number, layer, at[id(e.weight)], imag, step))
            paths[id(e.weight)] = layer.path
            for t, kind in ((e.imag, "phase_weight"), (None if e.step is None else e.step.weight, "dt")):
                if t is not None:
                    paths.setdefault(id(t), layer.paths.get(kind, f"{layer.path} ({kind})"))
        self._columns = Columns(self._watched, self._row.places, [paths[key] for key in tensors])
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)

    def _live_optimizers(self) -> list[tuple[int, Optimizer]]:
        return [(i, o) for i, ref in enumerate(self._optimizers) if (o := ref()) is not None]

    def _start(self, order: LossOrder) -> None:
        """Start the recorder, once it is known when the loop reports the loss."""
        assert self._row is not None
        self._order = order
        has_loss = order is not LossOrder.NEVER
        scalars = [names.TRAIN_LOSS] * has_loss + [names.LR, names.SKIPPED] + [names.GRAD_NORM] * self._has_norm
        catalogue = [names.scalar(name) for name in (*scalars, names.STEP_TIME)]
        catalogue += [names.scalar(names.LOSS_OVER_BEST, names.PROGRESS)] * has_loss
        for layer in self._watched:
            catalogue += layer.catalogue(self.gradient, self._every)
        detectors = Detectors(
            self._columns.parameter_names,
            None,
            steps=self._steps(),
            **{threshold.name: threshold.default for threshold in THRESHOLDS},
        )
        forms = [layer.form for layer in self._watched]
        reader = OutsideReader(forms, detectors, has_loss=has_loss, unowned=self._unowned)
        self._sink.facts = _facts(self._row.row.device, self.gradient)
        self._recorder = Recorder(
            catalogue,
            self._sink,
            layout=self._columns.layout,
            device=self._row.row.device,
            every=self._every,
            reader=reader,
            gauges={names.STEP_TIME: lambda rows, seconds: seconds / rows},
            flush_steps=max(1, min(FLUSH_STEPS, RING_BYTES // (32 * self._row.columns))),
            flush_seconds=FLUSH_SECONDS,
            expansion=Expansion(self._row.columns, self._columns.compute),
            patience=0.0,
        )

    def _steps(self) -> Steps:
        optimizers = [o for number, o in self._live_optimizers() if number in self._owners]
        return steps_of([type(o).__name__ for o in optimizers], clips=self.gradient == "clipped")

    def _lr(self, optimizer: Optimizer, owner: int) -> float | Tensor | None:
        """The learning rate of the first watched weight."""
        if owner != min(self._owners):
            return None
        if not hasattr(self, "_lr_group"):
            first = origin(self._tensors[0]) if self._tensors else None
            groups = optimizer.param_groups
            self._lr_group = next((i for i, g in enumerate(groups) for p in g["params"] if id(p) == first), 0)
        if self._lr_group >= len(optimizer.param_groups):
            return None
        lr: float | Tensor = optimizer.param_groups[self._lr_group].get("lr", math.nan)
        return lr

    def _count_missing(self, row: StagedRow) -> None:
        self._without_gradient = self._without_gradient + 1 if row.missing else 0
        if self._without_gradient == NO_GRADIENT_STEPS:
            self._say(f"the watched weights have had no gradient for {NO_GRADIENT_STEPS} steps: were they replaced in the model?")


def _facts(device: torch.device, gradient: str) -> dict[str, Any]:
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "gradient": gradient,
    }
