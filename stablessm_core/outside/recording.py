"""Records a foreign model: takes a row at each optimizer step and passes it to the recorder.

The recorder starts at the first step, because only then is it known whether the loop reports a loss, and on which device the
model lives. Loops report the loss before or after the optimizer's step. The first step shows which: a loss that is given right
after it belongs to the step that has just been taken. If the program replaces a parameter or its optimizer, the recording
follows.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stablessm_core.outside.columns import Columns
from stablessm_core.outside.hook import OptimizerFinder, StepHooks, scale_of_scaler
from stablessm_core.outside.identity import Identity
from stablessm_core.outside.layout import columns_of, on_one_device, open_recorder, tensors_of, with_tensors
from stablessm_core.outside.losses import KEPT, TOO_LATE, Losses, LossOrder, as_loss
from stablessm_core.outside.modules import Layer, unreadable
from stablessm_core.outside.owners import Owners
from stablessm_core.outside.precision import autocast_of, precision_of
from stablessm_core.outside.rows import StagedRow
from stablessm_core.outside.sharded import is_sharded, origin
from stablessm_core.outside.sink import OutsideSink
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.reported_rows import OutsideReader
from stablessm_core.watch.recorder import Recorder

NO_GRADIENT_STEPS = 100
LOOK_SECONDS = 1.0  # after which the owners of the tensors are looked up again
ABANDON_SECONDS = 0.7  # that the flush thread has for the batch that it works on, when time is up


class Recording:
    """The rows of one run.

    optimizers: if there are none, the one that takes the first step with a watched parameter is found, and passed to `found`.
    layers: what is watched. first_step: called at the first step, returns the number of steps that were done before. say:
    receives sentences for the user. tell: receives what the page of the run shows too, and the name of the tensor or optimizer.
    precision: receives the type of numbers in which autocast computes. length: of the sequences over which a state runs, if
    known. gradient: what the recorded gradients are, a key of `telemetry.gradients.GRADIENTS`. stopped: why no more rows are
    recorded; "" while they are. alone: True if losses came and no optimizer took a step; then somebody else records the losses.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        layers: Sequence[Layer],
        sink: OutsideSink,
        *,
        every: int,
        length: int | None = None,
        first_step: Callable[[], int],
        say: Callable[[str], None],
        found: Callable[[Optimizer], None] = lambda _: None,
        tell: Callable[[str, str], None] | None = None,
        precision: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.layers = list(layers)
        self.step = 0
        self._committed = 0  # the last step whose row the recorder has
        self.gradient = "unknown"
        self.stopped, self.alone = "", False
        self.losses = Losses()
        self._length = length
        self._sink, self._every, self._first_step, self._say, self._on_found = sink, every, first_step, say, found
        self._tell = tell or (lambda sentence, _: say(sentence))
        self._on_precision, self._half = precision, precision_of(model) in ("float16", "bfloat16")
        self._lock = threading.RLock()
        self._row: StagedRow | None = None
        self._columns: Columns | None = None
        self._reader: OutsideReader | None = None
        self._recorder: Recorder | None = None
        self._kept: tuple[int, dict[str, float]] = 0, {}  # `dropped` and `latest` after the end
        self._norm: Tensor | None = None
        self._has_norm = self._has_scale = False
        self._pending = self._ended = self._model_left = False
        self._seen: set[int] = set()
        self._without_gradient = 0
        self._stream: Any = None
        self._lr_group: int | None = None
        self._late: int | None = None  # an optimizer whose next step belongs to a row that the recorder has
        self._looked = 0.0
        parameter = next(iter(model.parameters()), None)
        self._model_device = torch.device("cpu") if parameter is None else parameter.device
        self._parameters = {id(p) for p in model.parameters()}
        self._model = weakref.ref(model)
        self._tensors: list[Tensor] = tensors_of(layers)
        self._identity = Identity(model, self._tensors)
        self._owners = Owners()
        self._owners.name(optimizers)
        self._hooks = StepHooks(optimizers, self.take, self.failed)
        self._finder = OptimizerFinder(self._wanted, self._hooks, self._found, self.take, self.failed)
        self._finalizer = weakref.finalize(model, self._model_gone)
        self._finalizer.atexit = False

    # ---- the training thread ----

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
        if not self._ready(owner) or owner not in self._owners.used:  # the latter trains no watched weight
            return
        if owner == self._late:
            self._late = None
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
            found = found if isinstance(found, Tensor) else skipped
            row.take(owner, self._lr(optimizer, owner), scale, found, self._norm, self._scale_of(row, scale))
        self._norm = None
        self._count_missing(row)
        self._seen.add(owner)
        if self._seen >= self._owners.used:
            self._complete()

    def take_ahead(self, optimizer: Optimizer) -> None:
        """Copy the gradients of the step that `optimizer` does next, before the loop clips them. Never raises."""
        try:
            with self._lock:
                self._finder.search(optimizer)
                owner = self._hooks.number_of(optimizer)
                if self._ended or owner is None or owner in self._hooks.ahead:
                    return
                if self._ready(owner) and owner in self._owners.used and (row := self._row_for(owner)) is not None:
                    row.take(owner, self._lr(optimizer, owner), None, False, None)
                    self._hooks.ahead.add(owner)
        except Exception as error:  # noqa: BLE001 - nothing raises inside the user's loop
            self.failed(error)

    def _ready(self, owner: int) -> bool:
        """Whether a row can be taken: it is laid out, and holds what the model and its optimizers hold now."""
        if self._model_left and not self._identity.alive:
            self.stop("the watched model was deleted")
            return False
        if self._identity.changed():
            self._replace()
        if self._row is None and not self._ended:
            self._prepare(owner)
        elif not self._ended and (
            monotonic() - self._looked >= LOOK_SECONDS
            or (owner not in self._owners.used and self._owners.trains(owner, self._tensors))
        ):
            self._assign(owner)
        return not self._ended

    def _scale_of(self, row: StagedRow, own: Any) -> Tensor | None:
        """The factor of the gradient scaler of this step. own: that of an optimizer that receives scaled gradients."""
        scale = own if isinstance(own, Tensor) else scale_of_scaler()
        if scale is None or scale.device != row.row.device:
            return None
        if self._recorder is None:
            self._has_scale = True
        if not self._half:
            self._half = True
            self._on_precision("float16")
        return scale

    def _row_for(self, owner: int) -> StagedRow | None:
        """The row, free for the next numbers of this optimizer; None if the model has moved away from it."""
        if owner in self._seen:  # another optimizer has not stepped
            self._complete()
        if not self._seen and self._pending:  # no loss came for the step before
            if self.losses.order is None:
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
        if self.losses.order is None and self.losses.waiting:
            self._start(LossOrder.BEFORE)
        if self.losses.order in (LossOrder.BEFORE, LossOrder.NEVER):
            self._put_loss()
            self._commit()
        else:
            self._pending = True

    def _put_loss(self) -> None:
        loss = self.losses.take()
        if loss is not None and self._row is not None:
            self._row.set_loss(loss)

    def _commit(self) -> None:
        if self._recorder is not None and self._row is not None and self._committed < self.step:
            self._recorder.record(self.step, self._row.row)
            self._committed = self.step
        self._pending = False

    def loss(self, loss: float | Tensor) -> None:
        """The loss of the current step. Several losses before one optimizer step are averaged."""
        if not self._half and (half := autocast_of(loss)) is not None:
            self._on_precision(half)
            self._half = True
        with self._lock:
            losses = self.losses
            if self._ended:
                losses.lose(self.stopped)
                return
            found = as_loss(loss, None if self._row is None else self._row.row.device, self._say)
            if found is None:
                return
            if losses.order is LossOrder.NEVER:
                self._say("the first loss came after the second step; the loss is not recorded")
                losses.lose(TOO_LATE)
                return
            losses.add(found, stepped=self._row is not None)
            if self._pending and losses.order in (None, LossOrder.AFTER):
                if losses.order is None:
                    self._start(LossOrder.AFTER)
                self._put_loss()
                self._commit()
            self.alone = self._row is None and losses.waiting > KEPT

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
            self._tensors = tensors_of(self.layers)
            if (model := self._model()) is not None:
                self._identity = Identity(model, self._tensors)
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

    def stop(self, why: str, of: str = "") -> None:
        """Record no more rows, for a reason that the user reads. of: the tensor that is the reason."""
        if not self._ended:
            self._ended, self.stopped = True, why
            self.losses.finish(why)
            self._tell(why, of)

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
                if self._model_left and not self._identity.alive:
                    self.stop("the watched model was deleted")
                if not len(self._owners):
                    self.alone = True
                if self._seen:
                    self._complete()
                if self._pending:
                    if self.losses.order is None:
                        self._start(LossOrder.NEVER)
                    self._commit()
                self.losses.finish()
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
        self._finder.remove()
        self._finalizer.detach()
        self._identity.release()
        self._tensors, self.layers = [], []  # nothing of the model is kept alive
        self._row = self._columns = self._reader = None

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
        if self.losses.order is not LossOrder.NEVER:
            return found
        return {name: value for name, value in found.items() if name != names.TRAIN_LOSS}  # nobody reported a loss

    @property
    def knows_steps(self) -> bool:
        """Whether `step` counts the steps of an optimizer. False as long as nobody has named one and none has taken a step."""
        return bool(len(self._owners))

    def _model_gone(self) -> None:
        self._model_left = True  # its parts may be trained on

    # ---- the first step ----

    def _prepare(self, owner: int) -> None:
        """Lay out the row."""
        self.step = self._committed = self._first_step()
        if self._ended:  # nobody knows the number of this step
            return
        self.layers, device = on_one_device(self.layers, self._model_device, self._say)
        self._tensors = tensors_of(self.layers)
        self._owners.assign(self._tensors, owner)
        self._row = StagedRow(self._tensors, self._owners.of, device)
        self._columns = columns_of(self.layers, self._tensors, self._row)
        self._looked = monotonic()
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)

    def _start(self, order: LossOrder) -> None:
        """Start the recorder, once it is known when the loop reports the loss."""
        assert self._row is not None
        assert self._columns is not None
        self.losses.order = order
        scalars = [names.TRAIN_LOSS] * (order is not LossOrder.NEVER) + [names.LR, names.SKIPPED]
        scalars += [names.GRAD_NORM] * self._has_norm + [names.SCALE] * self._has_scale
        self._recorder, self._reader = open_recorder(
            self._columns, self._row, self._sink, every=self._every, gradient=self.gradient, scalars=scalars,
            steps=self._owners.steps(clips=self.gradient == "clipped"), unowned=self._unowned(),
            length=self._length,
        )  # fmt: skip

    def _lr(self, optimizer: Optimizer, owner: int) -> float | Tensor | None:
        """The learning rate of the first watched weight."""
        if owner != min(self._owners.used):
            return None
        groups = optimizer.param_groups
        if self._lr_group is None:
            first = next((origin(t) for t, of in zip(self._tensors, self._owners.of, strict=True) if of == owner), None)
            self._lr_group = next((i for i, g in enumerate(groups) for p in g["params"] if id(p) == first), 0)
        if self._lr_group >= len(groups):
            return None
        lr: float | Tensor = groups[self._lr_group].get("lr", math.nan)
        return lr

    def _count_missing(self, row: StagedRow) -> None:
        self._without_gradient = self._without_gradient + 1 if row.missing else 0
        if self._without_gradient == NO_GRADIENT_STEPS:
            self._say(f"the watched weights have had no gradient for {NO_GRADIENT_STEPS} steps: were they replaced in the model?")

    # ---- what the program replaces in mid-run ----

    def _wanted(self) -> set[int]:
        """The identities of the parameters whose optimizer is recorded: the watched ones, or else all of the model."""
        with self._lock:
            if not self._ended and self._identity.changed():
                self._replace()
        watched = {origin(t) for t in self._tensors if t.requires_grad}
        model = self._model()
        return watched or (self._parameters if model is None else {id(p) for p in model.parameters()})

    def _found(self, optimizers: list[Optimizer]) -> None:
        """An optimizer that nobody has named takes a step."""
        if self._ended:
            return
        with self._lock:
            first, used = not len(self._owners), self._owners.used
            for optimizer in optimizers:
                self._owners.add(optimizer)
                self._hooks.add(optimizer)
            number = self._hooks.number_of(optimizers[0])
            assert number is not None
            if self._row is None:
                self._owners.assign(self._tensors, number)
            else:
                self._assign(number)
                self._join(number, used)
            if not first:
                kind = type(optimizers[0]).__name__
                since = f"from step {self.step + 1:,} on" if self._row is not None else "from the start"
                self._tell(f"another optimizer ({kind}) trains the watched model {since}; its steps are recorded", kind)
            if first or number in self._owners.used:
                self._on_found(optimizers[0])

    def _join(self, number: int, used: set[int]) -> None:
        """A further optimizer trains a part of the weights. Its step belongs to the row of the others. used: the others."""
        if self._seen or not used < self._owners.used:
            return
        if self._pending:
            self._seen, self._pending = set(used), False
        else:  # the recorder has the row already
            self._late = number

    def _assign(self, stepping: int) -> None:
        """Find out again which optimizer trains which tensor."""
        self._looked = monotonic()
        if not self._owners.assign(self._tensors, stepping) or self._row is None:
            return
        self._row.assign(self._tensors, self._owners.of)
        self._seen &= self._owners.used
        self._lr_group = None
        if self._reader is not None:
            steps = self._owners.steps(clips=self.gradient == "clipped")
            self._reader.change(self.step + 1, self._unowned(), steps)

    def _unowned(self) -> set[int]:
        """The numbers of the layers whose weight no known optimizer trains, such as an averaged copy."""
        weights = (id(layer.eigenvalues.weight) for layer in self.layers)
        return {number for number, weight in enumerate(weights) if weight in self._owners.unowned}

    def _replace(self) -> None:
        """Record the tensors that the model holds now in the place of those that are recorded."""
        new: dict[int, Tensor] = {}
        paths: list[str] = []
        for path, old, instead in self._identity.replacements():
            if why := _why_not(old, instead):
                where = f"{path} was replaced after step {self.step:,}" if instead is not None else path
                self.stop(f"{where} {why}; no more eigenvalues are recorded", path)
                return
            assert instead is not None
            paths.append(path)
            new[id(old)] = instead
        if not new:
            return
        self.layers = [with_tensors(layer, new) for layer in self.layers]
        self._tensors = [new.get(id(t), t) for t in self._tensors]
        self._finder.forget()
        if self._row is None or self._columns is None:
            return
        self._columns.follow(self.layers)
        self._owners.of = []  # so that the row takes the new tensors
        self._looked = -math.inf
        more = f" and {len(paths) - 1:,} more tensors were" if len(paths) > 1 else " was"
        self._tell(f"{paths[0]}{more} replaced in the model after step {self.step:,}; what is there now is recorded", paths[0])


def _why_not(old: Tensor, new: Tensor | None) -> str:
    """Why the row cannot take the new tensor instead of the old one; "" if it can."""
    if new is None:
        return "is not in the model any more"
    if is_sharded(new):
        return "by a sharded one"
    if wrong := unreadable(new):
        return f"and cannot be read: {wrong}"
    if new.shape != old.shape or new.is_complex() != old.is_complex():
        return f"by a tensor of another form, {tuple(new.shape)} {new.dtype} instead of {tuple(old.shape)} {old.dtype}"
    return f"by a tensor on {new.device} instead of {old.device}" if new.device != old.device else ""
