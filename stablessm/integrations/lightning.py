"""A logger and a callback for Lightning's Trainer.

watch = StableSSMLogger(project="hybrid")
Trainer(logger=watch, callbacks=[watch.callback]).fit(module, loader)
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stablessm.integrations.starting import AFTER_END, CANCELLED, WatchArguments, check, quiet, say, start
from stablessm_core.outside.arguments import check_arguments
from stablessm_core.outside.endings import cause_of
from stablessm_core.outside.run import Run
from stablessm_core.outside.start import WatchableRun

try:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers.logger import Logger
    from lightning.pytorch.utilities.exceptions import SIGTERMException
    from lightning.pytorch.utilities.rank_zero import rank_zero_only
except ImportError as error:
    raise ImportError("stablessm.integrations.lightning needs lightning: pip install lightning") from error

if TYPE_CHECKING:
    from typing import Unpack


class StableSSMLogger(Logger):  # type: ignore[misc]
    """Reports what a LightningModule logs. Its `callback` also watches the eigenvalues of the module.

    Give the Trainer both. Without the callback, only logged numbers are reported. Every process needs both; only the first one
    reports.
    keep_open: the run goes on after `fit`, for `test`; it ends with `logger.run.finish()` or with the program. The other
    arguments are those of `stablessm.watch`. The Trainer fills in total_steps and from_step, and the hyperparameters are added to
    config. Raises TypeError or ValueError for a wrong argument.
    run: the run, which does nothing before the training starts. `watch` watches a module without the callback.
    """

    def __init__(self, *, keep_open: bool = False, **arguments: Unpack[WatchArguments]) -> None:
        super().__init__()
        check("StableSSMLogger", arguments)
        self._arguments, self._keep_open = arguments, keep_open
        self._version = arguments.get("id") or str(uuid.uuid4())
        self._hyperparameters: dict[str, Any] = {}
        self._waiting: list[Mapping[str, Any]] = []  # logged before the callback has started the run
        self._begun = self._ended = False
        self._module: Any = None  # that `watch` received before the training
        self._layers: Any = None
        self.run: Run = _RunBefore(self)
        self.callback = _WatchCallback(self)

    @property
    def name(self) -> str:
        """The project, which Lightning uses as the name of a folder for checkpoints."""
        return self._arguments.get("project") or "stablessm"

    @property
    def version(self) -> str:
        """A UUID, which Lightning uses as the name of a folder for checkpoints; the id of the run if you gave one."""
        return self._version

    @property
    def experiment(self) -> Run:
        """The run."""
        return self.run

    @rank_zero_only  # type: ignore[untyped-decorator]
    @quiet
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        given = params if isinstance(params, Mapping) else vars(params)
        self._hyperparameters |= dict(given)

    @rank_zero_only  # type: ignore[untyped-decorator]
    @quiet
    def watch(self, model: Any, *_: Any, layers: Any = None, **__: Any) -> None:
        """Watch the eigenvalues of `model`, as the callback does for the module of the Trainer. The optimizer is found at its
        first step. layers: as in `stablessm.watch`. The other arguments of Lightning's logger for W&B (log, log_freq, log_graph)
        are not used."""
        if not (self._begun or self.callback.watches):
            self._module, self._layers = model, layers
        elif isinstance(self.run, WatchableRun):
            self.run.watch(model, layers=layers)

    @rank_zero_only  # type: ignore[untyped-decorator]
    @quiet
    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Lightning calls this when a training starts, after the hyperparameters are known. A watched module is watched now."""
        if self._module is not None and not self.callback.starts:
            self._begin_alone()

    def _begin_alone(self) -> None:
        """Start the run without the callback."""
        if self._begun:
            return
        self._begun = True
        self.run = start(self._module, None, self._given(), self._hyperparameters)

    def _given(self) -> dict[str, Any]:
        """The arguments of the logger, with the layers that `watch` received."""
        return dict(self._arguments) | ({} if self._layers is None else {"layers": self._layers})

    @rank_zero_only  # type: ignore[untyped-decorator]
    @quiet
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.callback.starts:
            self._waiting.append(metrics)
        elif self._ended:
            say(AFTER_END)
        elif self.callback.watches:
            self.run.log(metrics)
        else:
            self._begin_alone()
            self.run.log(metrics, step=None if step is None else step + 1)  # Lightning counts steps from 0

    @rank_zero_only  # type: ignore[untyped-decorator]
    @quiet
    def finalize(self, status: str) -> None:
        if status != "success":
            self.run.end("failed", f"Lightning ended the training as {status!r}")
        elif self.run.should_stop:
            self.run.finish(*CANCELLED)
        elif not self._keep_open:
            self.run.finish()
            self._ended = True

    def begin(self, module: Any, optimizers: list[Any], known: Mapping[str, Any]) -> None:
        """Start the run of a training. known: what the Trainer fills in."""
        self.run.end("failed", "another training began")
        self.run = start(module, optimizers, {**known, **self._given()}, self._hyperparameters)
        self._ended = False
        for metrics in self._waiting:
            self.run.log(metrics)
        self._waiting.clear()


class _RunBefore(WatchableRun):
    """Stands for the run before the training starts. It does nothing, except that it passes `watch` on."""

    def __init__(self, logger: StableSSMLogger) -> None:
        super().__init__(check_arguments(mode="disabled"), live=False)
        self._logger = logger

    def watch(self, models: Any, criterion: Any = None, *_: Any, layers: Any = None, **others: Any) -> WatchableRun:
        self._logger.watch(models, layers=layers)
        return self


class _WatchCallback(Callback):  # type: ignore[misc]
    """Watches the module of the Trainer for a logger."""

    def __init__(self, logger: StableSSMLogger) -> None:
        self._logger = logger
        self.starts = False  # from the set-up of a training to its first batch
        self.watches = False

    @quiet
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.starts = stage == "fit" and not trainer.fast_dev_run

    @quiet
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not self.starts:
            return
        self.starts = False
        steps = trainer.estimated_stepping_batches
        known = {
            "total_steps": int(steps) if 0 < steps < math.inf else None,
            "from_step": trainer.global_step // max(1, len(trainer.optimizers)),  # it counts the steps of all optimizers
        }
        self._logger.begin(pl_module, trainer.optimizers, known)
        # with manual optimization, the module may have clipped before Lightning calls on_before_optimizer_step
        self._logger.run.gradient_is("raw" if pl_module.automatic_optimization else "unknown")
        self.watches = True

    @quiet
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self.watches:
            loss = loss.detach() * trainer.accumulate_grad_batches  # Lightning has divided by it
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            scale = None if scaler is None else scaler._get_scale_async()
            self._logger.run.loss(loss if scale is None else loss / scale)

    @quiet
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        scaled = getattr(trainer.precision_plugin, "scaler", None) and getattr(optimizer, "_step_supports_amp_scaling", False)
        if self.watches and not scaled:  # a fused optimizer removes the scale inside its step
            self._logger.run.take_gradients(optimizer)

    @quiet
    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.watches and self._logger.run.should_stop:
            trainer.should_stop = True

    @quiet
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        terminated = isinstance(exception, SIGTERMException)
        self._logger.run.end(*("cancelled", "SIGTERM") if terminated else cause_of(type(exception), exception))
