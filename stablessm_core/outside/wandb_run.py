"""The run of `stablessm.init`: a run with the methods and attributes that programs for W&B use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from numbers import Real
from typing import Any

from stablessm_core.outside.arguments import Arguments, plain_config
from stablessm_core.outside.run import Run

WATCH_ARGUMENTS = frozenset({"log", "log_freq", "idx", "log_graph"})  # of W&B's function, which records histograms now and then
FIXED = ("name", "notes", "tags")  # what W&B lets a program change later
MAX_SUMMARY, MAX_SUMMARY_NAME = 90, 100  # numbers of a result that the server takes, and characters of a name


class WandbRun(Run):
    """A run that begins without a model. given_id: the id as the program wrote it; None if it wrote none.

    config: the configuration; a change reaches the server, or the run's file, within a second. summary: the last logged numbers,
    and the final numbers that the program sets. ended: True after the end of the run.
    """

    def __init__(self, arguments: Arguments, given_id: str | None, *, live: bool) -> None:
        self.ended = False
        super().__init__(arguments, live=live)
        self.config, self.summary = Config(self, arguments.config), Summary(self)
        self.id = given_id or arguments.id
        self.name, self.notes, self.tags = arguments.name or self.id[:8], arguments.notes, tuple(arguments.tags)
        self.project, self.entity, self.dir = arguments.project, "", str(arguments.dir)
        self._begun = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and "_begun" in vars(self):
            self.say(f"the {name} of a run cannot change after init")
            return
        super().__setattr__(name, value)

    def log(self, values: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **_: Any) -> None:
        """Report numbers. Each call is a step of its own, from 1, unless commit is False or a step is given; then the next call
        without a step belongs to the same step. While a model is watched, the step is that of its optimizer."""
        before, watched = self._log_step, self._recording is not None
        super().log(values, step)
        if not watched and not (step is None if commit is None else commit):
            self._log_step = before if step is None else max(before, self._log_step - 1)

    def _log(self, values: Mapping[str, Any], step: int | None) -> dict[str, Any]:
        found = super()._log(values, step)
        self.summary._logged.update(found)
        return found

    def watch(self, models: Any, criterion: Any = None, *_: Any, layers: Any = None, **others: Any) -> WandbRun:
        """Record the eigenvalues of the model at every step of the optimizer that trains it.

        criterion: an optimizer, or a list of them, is taken as the model's optimizer; anything else is not used, as are W&B's
        log, log_freq, idx and log_graph. layers: as in `stablessm.watch`. Raises TypeError or ValueError for a wrong argument.
        """
        if unknown := sorted(others.keys() - WATCH_ARGUMENTS):
            self.say(f"watch does not use {', '.join(unknown)}: the run of init has these already")
        model = models
        if isinstance(models, list | tuple) and models:
            model = models[0]
            if len(models) > 1:
                self.say(f"watch received {len(models)} models; the first one is watched")
        if self._recording is not None:
            self.say("this run watches a model already; the second call of watch changes nothing")
            return self
        from stablessm_core.outside.start import watch_in

        watch_in(self, model, criterion if _is_optimizer(criterion) else None, layers)
        return self

    def unwatch(self, models: Any = None) -> None:  # noqa: ARG002
        """Record no more eigenvalues."""
        if self._recording is not None:
            self._recording.stop("the model is not watched any more")

    def define_metric(self, name: str, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """Not used: every metric has the step as its axis, and its last value as its summary."""
        self.say("define_metric is not used: the step is the axis of every metric, and the last value is its summary")

    def alert(self, title: str, text: str = "", level: Any = "warning", wait_duration: Any = None) -> None:  # noqa: ARG002
        """Raise an alert on the run's page. level: "info", "warn" or "error". wait_duration: not used."""
        super().alert(title, text, level)

    def finish(self, exit_code: Any = None, quiet: Any = None, *, status: str = "", reason: str = "") -> None:  # type: ignore[override]  # noqa: ARG002
        """End the run. exit_code: another number than 0 means that the run failed."""
        if status or not exit_code:
            super().finish(status or "finished", reason)
        else:
            super().finish("failed", reason or f"exit code {exit_code}")

    def end(self, status: str, cause: str) -> None:
        self.ended = True
        super().end(status, cause)

    def __enter__(self) -> WandbRun:
        return self

    def __getattr__(self, name: str) -> Any:
        """What a run of W&B can do and ours cannot."""
        if name.startswith("_"):
            raise AttributeError(name)
        from stablessm_core.outside.wandb_missing import missing_name

        return missing_name(name, "run")

    def change_config(self, config: Mapping[str, Any]) -> None:
        """Store another configuration. One that cannot be stored is one sentence."""
        try:
            plain = plain_config(config)
        except (TypeError, ValueError) as error:
            self.say(f"{error}; the configuration stays as it was before")
            return
        if self._live:
            self._arguments = replace(self._arguments, config=plain)
            self.describe_training({})

    def _final_numbers(self) -> dict[str, float]:
        found = {name[:MAX_SUMMARY_NAME]: float(value) for name, value in self.summary._set.items() if isinstance(value, Real)}
        return dict(list(found.items())[:MAX_SUMMARY])


class Config(MutableMapping[str, Any]):
    """The configuration of a run, by `config["lr"]` or `config.lr`. Each change is stored."""

    def __init__(self, run: WandbRun, config: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_run", run)
        object.__setattr__(self, "_values", dict(config))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._run.change_config(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"the configuration has no {name!r}; it has {', '.join(map(str, self._values))}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, other: Any = (), /, allow_val_change: Any = None, **more: Any) -> None:  # noqa: ARG002
        """Set several values: of a dictionary, or of an object such as that of argparse. Every change is allowed."""
        self._values.update(other if isinstance(other, Mapping) or not hasattr(other, "__dict__") else vars(other), **more)
        self._run.change_config(self._values)

    def setdefaults(self, other: Mapping[str, Any]) -> None:
        """Set the values that are not set yet."""
        self.update({**other, **self._values})

    def as_dict(self) -> dict[str, Any]:
        """A dictionary of the values."""
        return dict(self._values)


class Summary(MutableMapping[str, Any]):
    """The final numbers: those that the program sets, and the last logged value of every other name. The numbers that were set
    are the result of the run."""

    def __init__(self, run: WandbRun) -> None:
        self._run = run
        self._set: dict[str, Any] = {}
        self._logged: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        return self._set[name] if name in self._set else self._logged[name]

    def __setitem__(self, name: str, value: Any) -> None:
        one = value.item() if callable(getattr(value, "item", None)) and getattr(value, "ndim", 1) == 0 else value
        if not isinstance(one, Real):
            self._run.say(f"summary: {name} is a {type(value).__name__}; only single numbers are stored")
        elif len(self._set) >= MAX_SUMMARY and name not in self._set:
            self._run.say(f"summary: only the first {MAX_SUMMARY} numbers are stored")
        self._set[name] = one

    def __delitem__(self, name: str) -> None:
        (self._set if name in self._set else self._logged).pop(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._logged, **self._set})

    def __len__(self) -> int:
        return len({**self._logged, **self._set})


def _is_optimizer(value: Any) -> bool:
    one = value[0] if isinstance(value, list | tuple) and value else value
    return callable(getattr(one, "step", None)) and (hasattr(one, "param_groups") or hasattr(one, "optimizer"))
