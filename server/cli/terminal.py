"""What the command line prints, by rich: tables, one run, a comparison, and a run as it trains.

On a terminal with colours, within its width, and with a progress bar; elsewhere (a pipe, a file) the same as plain lines of any
length.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from stablessm_core.client import Client, LiveEvent
from stablessm_core.nonfinite import spelling
from stablessm_core.telemetry.series import TRAIN_LOSS

COLORS = {"finished": "green", "running": "blue", "diverged": "red", "failed": "red", "cancelled": "yellow", "queued": "cyan"}
ANY_LENGTH = 100_000
ALERTS_SHOWN = 20
EVENTS_SHOWN = 10


def show(part: RenderableType) -> None:
    """Print to standard output."""
    console = _console()
    wide = console.options.update(width=ANY_LENGTH)
    console.width = max(console.width, console.measure(part, options=wide).minimum)  # a number must not lose its last digits
    with console.capture() as captured:
        console.print(part)
    click.echo("\n".join(line.rstrip(" ") for line in captured.get().split("\n")), nl=False)  # cells are padded


def _console() -> Console:
    terminal = sys.stdout.isatty()
    width = None if terminal else ANY_LENGTH
    return Console(force_terminal=terminal, width=width, markup=False, emoji=False, highlight=False, soft_wrap=not terminal)


def table(rows: Iterable[Sequence[str | Text]], titles: Sequence[str], *, numbers: Iterable[str] = ()) -> Table:
    """Columns as wide as their widest cell; on a narrow terminal the last one is cut. Those titled in `numbers` are set right."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for title in titles:
        made.add_column(title, justify="right" if title in numbers else "left", no_wrap=title != titles[-1], overflow="fold")
    for *cells, last in rows:
        made.add_row(*(_cell(cell) for cell in cells), _cell(last, no_wrap=True, overflow="ellipsis"))
    return made


def _cell(content: str | Text, **options: Any) -> Text:
    return content if isinstance(content, Text) else Text(printable(content), **options)


def queue_table(queues: Iterable[dict[str, Any]], now: float) -> Table:
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
    titles = ["queue", "waiting", "running", "limit", "longest wait", "workers"]
    return table(rows, titles, numbers=titles[1:])


def run_table(runs: Iterable[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            str(run["id"]),
            _status(run["status"]),
            f"{run['step']}/{run['steps']}",
            run["config"]["task"]["name"],
            ", ".join(dict.fromkeys(form["map"] for form in run["forms"])),
            f"{run['config']['optimizer']['lr']:g}",
            number((run["result"] or {}).get("train_loss")),
            str(run["alerts"] or ""),
            run["user"],
            run["name"] or "",
        ]
        for run in runs
    ]
    titles = ["run", "status", "step", "task", "map", "lr", "loss", "alerts", "by", "name"]
    return table(rows, titles, numbers=("run", "step", "lr", "loss", "alerts")) if rows else "No runs."


def sweep_list(sweeps: Iterable[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            str(one["id"]),
            *_counted(one),
            ", ".join(f"{count} {status}" for status, count in one["statuses"].items()),
            ", ".join(f"{path.removesuffix('.name').split('.')[-1]} x {len(values)}" for path, values in one["grid"].items()),
            one["user"] or "",
            _moment(one["created_at"]),
            one["name"] or "",
        ]
        for one in sweeps
    ]
    titles = ["sweep", "finite", "stable", "runs", "grid", "by", "created", "name"]
    return table(rows, titles, numbers=("sweep", "finite", "stable")) if rows else "No sweeps."


def token_table(tokens: Iterable[dict[str, Any]]) -> RenderableType:
    rows = [
        [str(one["id"]), one["scope"], one["state"], *map(_moment, (one["created_at"], one["expires_at"], one["last_used_at"])),
         one["name"], "a proxy's" if one["names_users"] else one["user"] or ""]
        for one in tokens
    ]  # fmt: skip
    titles = ["token", "scope", "state", "created", "ends", "last used", "name", "user"]
    return table(rows, titles, numbers=("token",)) if rows else "No tokens."


def trash_page(trash: dict[str, Any]) -> Group:
    rows = [
        [str(run["id"]), run["status"], run["task"], occupied(run["bytes_stored"]), _moment(run["until"]),
         run["deleted_by"] or "", run["name"] or ""]
        for run in trash["runs"]
    ]  # fmt: skip
    titles = ["run", "status", "task", "occupies", "gone at", "deleted by", "name"]
    sums = [f"{what}: {trash[key]['runs']:,} runs, {occupied(trash[key]['bytes_stored'])}"
            for what, key in (("in the trash", "trash"), ("kept", "kept"))]  # fmt: skip
    return Group(*([table(rows, titles, numbers=("run", "occupies"))] if rows else []), *map(Text, sums))


def retention_page(leaving: Sequence[Any]) -> Group:
    """What retention would move: runs with number, name, end, size and reason."""
    rows = [[str(run.run_id), occupied(run.bytes_stored), _moment(run.ended_at), run.name or "", run.reason] for run in leaving]
    titles = ["run", "occupies", "ended", "name", "why"]
    total = Text(f"{len(leaving):,} runs would go to the trash, {occupied(sum(run.bytes_stored for run in leaving))}")
    return Group(*([table(rows, titles, numbers=("run", "occupies"))] if rows else []), total)


def occupied(size: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def user_table(users: Iterable[dict[str, Any]]) -> RenderableType:
    rows = [
        [str(one["id"]), *(_of_quota(one[used], one[f"max_{used}"]) for used in ("running", "queued", "bytes")),
         "all" if one["may_change_all"] else "own", one["name"]]
        for one in users
    ]  # fmt: skip
    return table(
        rows, ["user", "running", "queued", "bytes", "changes runs", "name"], numbers=("user", "running", "queued", "bytes")
    )


def _of_quota(used: int, most: int | None) -> str:
    return f"{used:,}" if most is None else f"{used:,} of {most:,}"


def run_page(
    run: dict[str, Any], alerts: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]] = (),
    verdict: dict[str, Any] | None = None,
) -> Group:  # fmt: skip
    title = f"run {run['id']}" + (f" {run['name']!r}" if run["name"] else "")
    lines = [Text.assemble((printable(title), "bold"), "  ", _status(run["status"]), "  ", printable(run["status_reason"]))]
    lines.append(Text(f"  step {run['step']} of {run['steps']}, attempt {run['attempt']}" + _speed(run)))
    if "bytes_stored" in run:  # not of an older server
        lines.append(Text(f"  occupies {occupied(run['bytes_stored'])}"))
    where = f" on {run['host']}" + (f", {run['gpu_name']}" if run["gpu_name"] else "") if run["host"] else ""
    lines.append(Text(printable(f"  by {run['user']}{where}")))
    if run["waits_for"]:
        lines.append(Text(printable(f"  waits for {run['waits_for']}")))
    lines += _verdict_lines(verdict) if verdict else []
    if events:
        lines.append(Text("history", "bold"))
        lines += [Text("  …")] * (len(events) > EVENTS_SHOWN)
        lines += [Text.assemble("  ", event_line(event)) for event in events[-EVENTS_SHOWN:]]
    for part in ("result", "divergence", "config", "environment"):
        if run[part]:
            lines.append(Text(part, "bold"))
            lines += [Text.assemble("  ", (path, "cyan"), f" = {printable(_value(value))}") for path, value in _flat(run[part])]
    if alerts:
        lines.append(Text(f"{len(alerts)} alerts", "bold"))
        lines += [Text.assemble("  ", alert_line(alert)) for alert in alerts[:ALERTS_SHOWN]]
    return Group(*lines)


def _verdict_lines(verdict: dict[str, Any]) -> list[Text]:
    cause = f" {verdict['cause'].replace('_', ' ')}" if verdict["cause"] else ""
    lines = [Text.assemble(("verdict", "bold"), cause), Text(printable(f"  {verdict['summary']}"))]
    lines += [Text(printable(f"  step {event['step']}: {event['text']}")) for event in verdict["events"]]
    lines += [Text(printable(f"  {one['text']}")) for one in verdict["confirmed"]]
    for one in verdict["try"]:
        change = " ".join(f"{path}={_value(value)}" for path, value in one["change"].items())
        lines.append(Text.assemble("  try ", (printable(change), "cyan"), printable(f": {one['because']}")))
    return lines


def comparison(result: dict[str, Any]) -> Group:
    parts: list[RenderableType] = [run_table(result["runs"])]
    if result["differences"]:
        titles = ["field", *(f"#{run['id']}" for run in result["runs"])]
        parts += ["", table([[d["field"], *map(_value, d["values"])] for d in result["differences"]], titles)]
    if result["ranges"]:
        names = ("min", "median", "max")
        rows = [
            [f"#{r['run_id']}", r["reparameterization"], *(number(r[n]) for n in names), f"{r['finite']:,}/{r['total']:,}"]
            for r in result["ranges"]
        ]
        parts += ["", Text("|grad| / |w|", "bold"), table(rows, ["run", "map", *names, "finite"], numbers=(*names, "finite"))]
    if result.get("groups"):
        statistics = ("median", "q25", "q75")
        rows = [
            [_key(g["key"]), str(g["rank"]), *_counted(g), str(g["lost"]), *(number(g["final_loss"][n]) for n in statistics)]
            for g in sorted(result["groups"], key=lambda group: int(group["rank"]))
        ]
        titles = ["group", "rank", "finite", "stable", "lost", "median loss", "25 %", "75 %"]
        parts += ["", Text("groups, the best first", "bold"), table(rows, titles, numbers=titles[1:])]
    if paired := result.get("paired"):
        rows = [
            [row["label"], number(row["median"]), number(row["q25"]), number(row["q75"]), f"{row['pairs']} of {row['of']}",
             f"{row['lower']}/{row['higher']}", str(row["only_reference"]), str(row["only_this"])]
            for row in paired["rows"]
        ]  # fmt: skip
        titles = ["group", "median", "25 %", "75 %", "pairs", "lower/higher", "lost, other finite", "finite, other lost"]
        title = printable(f"differences of the final loss to {paired['against']}, pair by pair")
        parts += ["", Text(title, "bold"), table(rows, titles, numbers=titles[1:])]
    return Group(*parts)


def _counted(of: dict[str, Any]) -> list[str]:
    """Finite / total and stable / total, as everywhere."""
    return [f"{of['finite']}/{of['total']}", f"{of['stable']}/{of['total']}"]


def follow(client: Client, run_id: int) -> int:
    """Show the run until it ends; 0 if it finished, else 2. Ctrl-C stops looking, not training."""
    run = client.run(run_id)
    status = run["status"]
    progress = RunProgress(run)
    try:
        with progress.bar:
            for event in client.watch(run_id, series=[TRAIN_LOSS]):
                if event.kind == "alert":
                    progress.line(alert_line(event.data))
                elif event.kind == "status":
                    status = event.data["status"]
                    reason = f": {printable(event.data['reason'])}" if event.data["reason"] else ""
                    progress.line(Text.assemble(_status(status), f" at step {event.data['step']}{reason}"))
                progress.update(event)
    except KeyboardInterrupt:
        click.echo(f"Run {run_id} goes on; `stablessm watch {run_id}` looks again.")
        return 130
    result = client.run(run_id)["result"] or {}
    if result:
        click.echo("  ".join(f"{name} {number(value)}" for name, value in _flat(result)))
    return 0 if status == "finished" else 2


class RunProgress:
    """Lines about a run and, on a terminal, a bar below them: step, loss, speed and the time that is left."""

    def __init__(self, run: dict[str, Any]) -> None:
        console = _console()
        self.bar = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[state]}", markup=False), console=console,
            transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self.bar.add_task("", total=run["steps"], completed=run["step"], state="")
        self._loss: float | None = None
        self._rate: float | None = run["steps_per_second"]
        self._left: float | None = run["eta_seconds"]

    def line(self, text: Text) -> None:
        self.bar.console.print(text)

    def update(self, event: LiveEvent) -> None:
        if event.kind == "points":
            self._rate, self._left = event.data.get("steps_per_second"), event.data.get("eta_seconds")
            if (loss := event.series.get(TRAIN_LOSS)) is not None and loss.value is not None and len(loss.value):
                self._loss = float(loss.value[-1])
        loss_text = f"loss {number(self._loss)}" if self._loss is not None else ""
        speed = f"  {number(self._rate)} steps/s  {_duration(self._left)} left" if self._rate else ""
        self.bar.update(self._task, completed=event.data.get("step"), state=loss_text + speed)


def alert_line(alert: dict[str, Any]) -> Text:
    color = "red" if alert["severity"] == "critical" else "yellow"
    return Text.assemble((alert["severity"], color), printable(f" step {alert['step']}: {alert['message']}"))


def event_line(event: dict[str, Any]) -> Text:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    back = f" (steps from {event['truncated_from']} on taken back)" if event["truncated_from"] else ""
    reason = f": {printable(event['reason'])}" if event["reason"] not in ("", event["event"]) else ""
    return Text.assemble(f"{moment}  ", event["event"].replace("_", " "), f" at step {event['step']}{reason}{back}")


def number(value: float | str | None) -> str:
    """As people read it; JSON has non-finite numbers as strings."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return spelling(value) or f"{value:.4g}"


def printable(text: str) -> str:
    """The text without what a terminal takes as a command: names and messages come from others."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _status(status: str) -> Text:
    return Text(status, COLORS.get(status, ""))


def _speed(run: dict[str, Any]) -> str:
    rate = f", {run['steps_per_second']:.3g} steps/s" if run["steps_per_second"] else ""
    return rate + (f", {_duration(run['eta_seconds'])} left" if run["eta_seconds"] is not None else "")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _moment(at: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if at is not None else "never"


def _key(key: dict[str, Any]) -> str:
    return ", ".join(f"{path.removesuffix('.name').split('.')[-1]}={_value(value)}" for path, value in key.items())


def _flat(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, item in value.items():
        flat += _flat(item, f"{prefix}{key}.") if isinstance(item, dict) else [(f"{prefix}{key}", item)]
    return flat


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)
