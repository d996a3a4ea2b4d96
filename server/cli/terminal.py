"""What the command line prints: tables, one run, a comparison, and a run as it trains."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from stablessm_core.client import Client, LiveEvent
from stablessm_core.telemetry.series import TRAIN_LOSS

COLORS = {"finished": "green", "running": "blue", "diverged": "red", "failed": "red", "cancelled": "yellow", "queued": "cyan"}
REDRAW_SECONDS = 0.1


def table(rows: Sequence[Sequence[str]], titles: Sequence[str]) -> str:
    """Columns as wide as their widest cell."""
    cells = [list(titles), *map(list, rows)]
    widths = [max(len(click.unstyle(row[i])) for row in cells) for i in range(len(titles))]
    lines = [
        "  ".join(cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([click.style(lines[0], bold=True), *lines[1:]])


def queue_table(queues: Iterable[dict[str, Any]], now: float) -> str:
    rows = [
        [
            queue["name"] + (" (paused)" if queue["paused"] else ""),
            str(queue["queued"]),
            str(queue["running"]),
            "none" if queue["max_running"] is None else str(queue["max_running"]),
            "" if queue["oldest_at"] is None else _duration(now - queue["oldest_at"]),
            str(queue["workers"]),
        ]
        for queue in queues
    ]
    return table(rows, ["queue", "waiting", "running", "limit", "longest wait", "workers"])


def run_table(runs: Iterable[dict[str, Any]]) -> str:
    rows = [
        [
            str(run["id"]),
            _status(run["status"]),
            f"{run['step']}/{run['steps']}",
            run["config"]["task"]["name"],
            run["config"]["model"]["reparameterization"]["name"],
            f"{run['config']['optimizer']['lr']:g}",
            number((run["result"] or {}).get("train_loss")),
            str(run["alerts"] or ""),
            run["name"] or "",
        ]
        for run in runs
    ]
    titles = ["run", "status", "step", "task", "map", "lr", "loss", "alerts", "name"]
    return table(rows, titles) if rows else "No runs."


def token_table(tokens: Iterable[dict[str, Any]]) -> str:
    rows = [
        [str(one["id"]), one["scope"], one["state"], _day(one["created_at"]), _day(one["expires_at"]), _day(one["last_used_at"]),
         click.unstyle(one["name"])]
        for one in tokens
    ]  # fmt: skip
    return table(rows, ["token", "scope", "state", "created", "ends", "last used", "name"]) if rows else "No tokens."


def _day(at: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at is not None else "never"


def run_page(run: dict[str, Any], alerts: Sequence[dict[str, Any]]) -> str:
    head = f"run {run['id']}" + (f" {run['name']!r}" if run["name"] else "")
    lines = [f"{click.style(head, bold=True)}  {_status(run['status'])}  {run['status_reason']}".rstrip()]
    lines.append(f"  step {run['step']} of {run['steps']}, attempt {run['attempt']}" + _speed(run))
    if run["waits_for"]:
        lines.append(f"  waits for {run['waits_for']}")
    for title in ("result", "divergence", "config", "environment"):
        if run[title]:
            lines.append(click.style(title, bold=True))
            lines += [f"  {path} = {_value(value)}" for path, value in _flat(run[title])]
    if alerts:
        lines.append(click.style(f"{len(alerts)} alerts", bold=True))
        lines += [f"  {alert_line(alert)}" for alert in alerts[:20]]
    return "\n".join(lines)


def comparison(result: dict[str, Any]) -> str:
    parts = [run_table(result["runs"])]
    if result["differences"]:
        titles = ["field", *(f"#{run['id']}" for run in result["runs"])]
        parts.append(table([[d["field"], *(_value(v) for v in d["values"])] for d in result["differences"]], titles))
    if result["ranges"]:
        names = ("min", "median", "max")
        rows = [
            [f"#{r['run_id']}", r["reparameterization"], *(number(r[n]) for n in names), f"{r['finite']:,}/{r['total']:,}"]
            for r in result["ranges"]
        ]
        parts.append("|grad| / |w|\n" + table(rows, ["run", "map", *names, "finite"]))
    if result.get("groups"):
        rows = [
            [_key(g["key"]), f"{g['finite']}/{g['total']}", *(number(g["final_loss"][n]) for n in ("mean", "min", "max"))]
            for g in result["groups"]
        ]
        parts.append("groups\n" + table(rows, ["group", "finite", "mean loss", "min", "max"]))
    return "\n\n".join(parts)


def follow(client: Client, run_id: int) -> int:
    """Show the run until it ends; 0 if it finished, else 2. Ctrl-C stops looking, not training."""
    run = client.run(run_id)
    bar = _Bar(run["steps"])
    status = run["status"]
    try:
        for event in client.watch(run_id, series=[TRAIN_LOSS]):
            if event.kind == "alert":
                bar.above(alert_line(event.data))
            elif event.kind == "status":
                status = event.data["status"]
                bar.above(f"{_status(status)} at step {event.data['step']}: {event.data['reason'] or 'no reason given'}")
            bar.update(event)
    except KeyboardInterrupt:
        bar.clear()
        click.echo(f"Run {run_id} goes on; `stablessm watch {run_id}` looks again.")
        return 130
    bar.clear()
    result = client.run(run_id)["result"] or {}
    if result:
        click.echo("  ".join(f"{name} {number(value)}" for name, value in _flat(result)))
    return 0 if status == "finished" else 2


class _Bar:
    """The last line of the terminal, drawn at most ten times a second; nothing where nobody sees it."""

    def __init__(self, steps: int) -> None:
        self.steps, self.step = steps, 0
        self.loss: float | None = None
        self.left: float | None = None
        self.rate: float | None = None
        self.shown = sys.stdout.isatty()
        self.drawn = 0.0

    def update(self, event: LiveEvent) -> None:
        self.step = event.data.get("step", self.step)
        if event.kind == "points":
            self.left, self.rate = event.data.get("eta_seconds"), event.data.get("steps_per_second")
            if (loss := event.series.get(TRAIN_LOSS)) is not None and loss.value is not None and len(loss.value):
                self.loss = float(loss.value[-1])
        if self.shown and time.monotonic() - self.drawn > REDRAW_SECONDS:
            self.drawn = time.monotonic()
            click.echo("\r\x1b[K" + self.line(shutil.get_terminal_size().columns), nl=False)

    def line(self, columns: int) -> str:
        tail = f" {self.step}/{self.steps}  loss {number(self.loss)}"
        tail += f"  {number(self.rate)} steps/s  {_duration(self.left)} left" if self.rate else ""
        width = max(5, min(40, columns - len(tail) - 3))
        done = round(width * min(1.0, self.step / self.steps))
        return f"[{'#' * done}{'.' * (width - done)}]{tail}"[: columns - 1]

    def above(self, text: str) -> None:
        self.clear()
        click.echo(text)

    def clear(self) -> None:
        if self.shown:
            click.echo("\r\x1b[K", nl=False)


def alert_line(alert: dict[str, Any]) -> str:
    color = "red" if alert["severity"] == "critical" else "yellow"
    return f"{click.style(alert['severity'], fg=color)} step {alert['step']}: {alert['message']}"


def number(value: float | str | None) -> str:
    """As people read it; JSON has non-finite numbers as strings."""
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.4g}"


def _status(status: str) -> str:
    return click.style(status, fg=COLORS.get(status))


def _speed(run: dict[str, Any]) -> str:
    rate = f", {run['steps_per_second']:.3g} steps/s" if run["steps_per_second"] else ""
    return rate + (f", {_duration(run['eta_seconds'])} left" if run["eta_seconds"] is not None else "")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _key(key: dict[str, Any]) -> str:
    return ", ".join(f"{path.removesuffix('.name').split('.')[-1]}={_value(value)}" for path, value in key.items())


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, item in value.items():
        flat += _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else [(f"{prefix}{key}", item)]
    return flat


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)
