"""The run of `stablessm.init`: a run with the methods and attributes that programs for W&B use."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stablessm_core.outside.arguments import Arguments, check_arguments
from stablessm_core.outside.configuration import storable_config
from stablessm_core.outside.start import WatchableRun
from stablessm_core.outside.wandb_config import Config, Summary
from stablessm_core.outside.wandb_missing import Names, missing_name, tell

FIXED = ("name", "notes", "tags")  # what W&B lets a program change later


class WandbRun(WatchableRun):
    """A run that begins without a model.

    given_id: the id as the program wrote it; None if it wrote none. config: the configuration as the program gave it; a change
    reaches the server, or the run's file, within a second. summary: the last logged numbers, and the final numbers that the
    program sets. group, job_type: as given to `init`, "" if missing. ended: True after the end of the run.
    """

    def __init__(
        self,
        arguments: Arguments,
        given_id: str | None,
        *,
        live: bool,
        config: Mapping[str, Any] | None = None,
        group: str = "",
        job_type: str = "",
    ) -> None:
        self.ended = False
        super().__init__(arguments, live=live)
        self.config = Config(arguments.config if config is None else config, self.change_config)
        self.summary = Summary(self.say)
        self.id = given_id or arguments.id
        self.name, self.notes, self.tags = arguments.name or self.id[:8], arguments.notes, tuple(arguments.tags)
        self.project, self.entity, self.group, self.job_type = arguments.project, "", group, job_type
        self.start_time, self.starting_step = time.time(), 0
        self._process, self._lost_in_child = os.getpid(), 0
        self._continues: bool | None = None  # whether the run existed before; None while the server has not said so
        self._begun = True

    # ---- what W&B's run says about itself ----

    @property
    def resumed(self) -> bool:
        """True if the run existed before this process: the server knew it, or the program gave a from_step above 0."""
        if self._arguments.resume != "never" and self._continues is None and self._uplink is not None and not self.ended:
            self._notice_answer()
            if self._continues is None:
                self.say("run.resumed is False because the server has not said whether it knows the run")
        return bool(self._continues)

    @property
    def dir(self) -> str:
        """A folder for the program's own files, which exists after it was asked for. Nothing in it is sent."""
        folder = self._arguments.dir / f"files-{self._arguments.id[:8]}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    @property
    def offline(self) -> bool:
        """True if the run goes into a file only."""
        return self.mode == "offline"

    @property
    def disabled(self) -> bool:
        """True if nothing is recorded."""
        return self.mode == "disabled"

    @property
    def settings(self) -> Any:
        """What W&B calls settings: facts of the run under W&B's names."""
        known = {
            "run_id": self.id, "run_name": self.name, "run_notes": self.notes, "run_tags": self.tags, "run_group": self.group,
            "run_job_type": self.job_type, "run_url": self.url, "project": self.project, "entity": self.entity,
            "mode": self.mode, "resumed": self.resumed, "base_url": self._arguments.url, "files_dir": self.dir,
            "wandb_dir": str(self._arguments.dir), "sweep_id": None, "silent": False,
        }  # fmt: skip
        return Names("run.settings", known, lambda name: missing_name(name, "run.settings"))

    sweep_id = sweep_url = project_url = group_url = None

    def get_url(self) -> str | None:
        """The address of the run's page."""
        return self.url

    def project_name(self) -> str:
        """The project."""
        return self.project

    def get_project_url(self) -> None:
        """None: no page belongs to one project."""

    def get_sweep_url(self) -> None:
        """None: `init` begins no run of a sweep."""

    def _label(self, *_: Any, **__: Any) -> None:
        """Not used. Libraries tell W&B their names with it."""

    # ---- what it does ----

    def __setattr__(self, name: str, value: Any) -> None:
        if "_begun" in vars(self):
            if name == "config":
                self.config.update(value)
                return
            if name in FIXED:
                self.say(f"the {name} of a run cannot change after init")
                return
        super().__setattr__(name, value)

    def begin(self, *args: Any) -> None:
        super().begin(*args)
        if self._arguments.resume != "never" and self._arguments.from_step is not None:
            self._continues = self._arguments.from_step > 0
        self._notice_answer()
        self.starting_step = self._log_step

    def _notice_answer(self) -> None:
        opened = None if self._uplink is None else self._uplink.opened
        if self._continues is None and opened is not None:
            self._continues = self._arguments.resume != "never" and (opened.attempt > 1 or opened.next_step > 1)

    def log(self, values: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **_: Any) -> None:
        """Report numbers. Each call is a step of its own, from 1, unless commit is False or a step is given; then the next call
        without a step belongs to the same step. While a model is watched, the step is that of its optimizer."""
        if self._in_child():
            return
        before, watched = self._log_step, self._recording is not None
        super().log(values, step)
        if not watched and not (step is None if commit is None else commit):
            self._log_step = before if step is None else max(before, self._log_step - 1)

    def _log(self, values: Mapping[str, Any], step: int | None) -> dict[str, Any]:
        found = super()._log(values, step)
        self.summary._logged.update(found)
        return found

    def _in_child(self) -> bool:
        """True, after a sentence, in a process that was forked after `init`. The sentence comes again at 10, 100, ... calls."""
        if os.getpid() == self._process:
            return False
        self._lost_in_child += 1
        if str(self._lost_in_child).strip("0") == "1":
            self.say(
                f"process {os.getpid()} was forked after init, so nothing that it logs is recorded "
                f"(calls so far: {self._lost_in_child:,}); send its numbers to the process that called init, and log them there"
            )
        return True

    def define_metric(self, name: str, *_: Any, **__: Any) -> None:  # noqa: ARG002
        """Not used: every metric has the step as its axis, and its last value as its summary."""
        self.say("define_metric is not used: the step is the axis of every metric, and the last value is its summary")

    def alert(self, title: str, text: str = "", level: Any = "warning", wait_duration: Any = None) -> None:  # noqa: ARG002
        """Raise an alert on the run's page. level: "info", "warn" or "error". wait_duration: not used."""
        if not self._in_child():
            super().alert(title, text, level)

    def finish(self, exit_code: Any = None, quiet: Any = None, *, status: str = "", reason: str = "") -> None:  # type: ignore[override]  # noqa: ARG002
        """End the run. exit_code: another number than 0 means that the run failed."""
        if status or not exit_code:
            super().finish(status or "finished", reason)
        else:
            super().finish("failed", reason or f"exit code {exit_code}")

    join = finish

    def end(self, status: str, cause: str) -> None:
        self.ended = True
        super().end(status, cause)

    def __enter__(self) -> WandbRun:
        return self

    def __getattr__(self, name: str) -> Any:
        """What a run of W&B can do and ours cannot."""
        return missing_name(name, "run", (known for known in dir(type(self)) if known[0] != "_"))

    def change_config(self, config: Mapping[str, Any]) -> None:
        """Store another configuration. An entry that cannot be stored is one sentence."""
        if os.getpid() != self._process:
            self.say(f"process {os.getpid()} was forked after init, so its changes of config are not recorded")
            return
        self._notice_answer()  # the server counts a change of the configuration as another attempt
        plain, told = storable_config(config)
        for sentence in told:
            self.say(sentence)
        if self._live:
            self._arguments = replace(self._arguments, config=plain)
            self.describe_training({})

    def _final_numbers(self) -> dict[str, float]:
        return self.summary.numbers()

    def __copy__(self) -> WandbRun:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> WandbRun:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_other_process, (self.id, self._arguments.config)


def _in_other_process(id: str, config: dict[str, Any]) -> WandbRun:
    """The run as another process has it after pickle: with its configuration, and without a way to record."""
    tell("a run was sent to another process by pickle; nothing that is logged there is recorded")
    return WandbRun(check_arguments(mode="disabled", config=config), id, live=False)
