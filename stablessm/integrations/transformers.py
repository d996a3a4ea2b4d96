"""A callback for the Trainer of transformers: `Trainer(..., callbacks=[StableSSMCallback(project="hybrid")])`."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any

from stablessm.integrations.starting import AFTER_END, CANCELLED, WatchArguments, check, no_run, quiet, say, start

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("stablessm.integrations.transformers needs transformers: pip install transformers") from error

if TYPE_CHECKING:
    from typing import Unpack

UNFINISHED = "failed", "the Trainer stopped before the end of the training"


class StableSSMCallback(TrainerCallback):  # type: ignore[misc]
    """Watches the model that a Trainer trains, from the start to the end of `train`. Every process needs the callback,
    because sharded weights are gathered by all; only the first one reports.

    keep_open: the run goes on after `train`, for evaluations; it ends with `callback.run.finish()` or with the program. The other
    arguments are those of `stablessm.watch`. The Trainer fills in total_steps and from_step, and its arguments and the model's
    configuration are added to config as "trainer" and "model". Raises TypeError or ValueError for a wrong argument.
    run: the run, which does nothing before the training starts.
    """

    def __init__(self, *, keep_open: bool = False, **arguments: Unpack[WatchArguments]) -> None:
        check("StableSSMCallback", arguments)
        self._arguments, self._keep_open = arguments, keep_open
        self.run, self._ended = no_run(), False

    @quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any) -> None:
        self._ended = False
        self.run.end(*UNFINISHED)  # of an earlier `train` that an exception ended
        facts = {"trainer": args.to_dict()}
        if (described := getattr(model, "config", None)) is not None:
            facts["model"] = described.to_dict()
        known = {"total_steps": state.max_steps if state.max_steps > 0 else None, "from_step": state.global_step}
        self.run = start(model, optimizer, {**known, **self._arguments}, facts)
        self.run.gradient_is("clipped" if args.max_grad_norm else "raw")
        self.run.at_exit = UNFINISHED  # the Trainer tells its callbacks of no exception

    @quiet
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run.should_stop:
            control.should_training_stop = True

    @quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if self._ended:
            say(AFTER_END)
        numbers = {_name(name): value for name, value in (logs or {}).items() if isinstance(value, Real)}
        self.run.log(numbers, step=state.global_step)

    @quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.at_exit = "finished", ""
        if self.run.should_stop:
            self.run.finish(*CANCELLED)
        elif not self._keep_open:
            self.run.finish()
        self._ended = not self._keep_open


def _name(name: str) -> str:
    """The name of a number on the page: "eval_loss" becomes "eval/loss", and "loss" becomes "train/loss"."""
    group, _, rest = name.partition("_")
    return f"{group}/{rest}" if group in ("eval", "test") and rest else f"train/{name}"
