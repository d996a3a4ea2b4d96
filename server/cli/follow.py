"""Shows a run during training: a line for each alert and status change and, on a terminal, a progress bar."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from server.cli.run_views import alert_line, leaves
from server.cli.terminal import console, duration_text, number, printable, status_text
from stablessm_core.client import Client, LiveEvent
from stablessm_core.telemetry.series import TRAIN_LOSS

LINE_SECONDS = 60.0


def follow(client: Client, run_id: int) -> int:
    """Show the run until it ends. Returns the exit status: 0 if the run finished, else 2, and 130 after Ctrl-C, which ends only
    the display."""
    run = client.run(run_id)
    status = run["status"]
    progress = RunProgress(run)
    alerts: dict[int, str] = {}  # the first message of each alert; an alert that lasts is sent again with its duration
    try:
        with progress.bar:
            for event in client.watch(run_id, series=[TRAIN_LOSS]):
                if event.kind == "alert":
                    first = alerts.setdefault(event.data["id"], event.data["message"])
                    if not event.data["message"].startswith(f"{first}; this "):
                        progress.line(alert_line(event.data))
                elif event.kind == "status":
                    status = event.data["status"]
                    reason = f": {printable(event.data['reason'])}" if event.data["reason"] else ""
                    progress.line(Text.assemble(status_text(status), f" at step {event.data['step']}{reason}"))
                progress.update(event)
    except KeyboardInterrupt:
        click.echo(f"Run {run_id} continues; `stablessm watch {run_id}` shows it again.")
        return 130
    result = client.run(run_id)["result"] or {}
    if result:
        click.echo("  ".join(f"{name} {number(value)}" for name, value in leaves(result) if value is not None))
    return 0 if status == "finished" else 2


class RunProgress:
    """Prints lines about a run and its step, loss, speed and remaining time: on a terminal as a bar below the lines, elsewhere as
    further lines."""

    def __init__(self, run: dict[str, Any]) -> None:
        terminal = console()
        self.bar = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}", markup=False), console=terminal,
            transient=True, disable=not terminal.is_terminal,
        )  # fmt: skip
        self._task = self.bar.add_task("", total=run["steps"], completed=run["step"], state="")
        self._loss: float | None = None
        self._rate: float | None = run["steps_per_second"]
        self._left: float | None = run["eta_seconds"]
        self._steps = run["steps"]
        self._tenth = self._tenth_of(run["step"])
        self._printed_at = time.monotonic()

    def line(self, text: Text) -> None:
        self.bar.console.print(text)

    def update(self, event: LiveEvent) -> None:
        if event.kind == "points":
            self._rate, self._left = event.data.get("steps_per_second"), event.data.get("eta_seconds")
            if (loss := event.series.get(TRAIN_LOSS)) is not None and loss.value is not None and len(loss.value):
                self._loss = float(loss.value[-1])
        loss_text = f"loss {number(self._loss)}" if self._loss is not None else ""
        left = f"  {duration_text(self._left)} left" if self._left is not None else ""
        speed = f"  {number(self._rate)} steps/s{left}" if self._rate else ""
        step = event.data.get("step")
        self.bar.update(self._task, completed=step, state=loss_text + speed)
        if event.kind == "points" and step is not None and self.bar.disable:
            self._print_progress(step, loss_text + speed)

    def _print_progress(self, step: int, state: str) -> None:
        """In a pipe or a file, print a line for every tenth of the steps and at least every LINE_SECONDS."""
        tenth, now = self._tenth_of(step), time.monotonic()
        if tenth > self._tenth or now - self._printed_at > LINE_SECONDS:
            self._tenth, self._printed_at = tenth, now
            of = "" if self._steps is None else f"/{self._steps}"
            self.line(Text(f"step {step}{of}  {state}".rstrip()))

    def _tenth_of(self, step: int) -> int:
        return 0 if self._steps is None else 10 * step // self._steps
