"""The command line's views of runs: a table, one run in full, a comparison, lines for alerts and events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from server.cli.terminal import duration_text, number, printable, ratios, short_path, size_text, status_text, table, time_text

ALERTS_SHOWN = 20
EVENTS_SHOWN = 10


def run_table(runs: Iterable[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            str(run["id"]),
            status_text(run["status"]),
            _progress(run),
            _task(run),
            ", ".join(dict.fromkeys(form["map"] for form in run["forms"])),
            _rate(run),
            number((run["result"] or {}).get("train_loss")),
            str(run["alerts"] or ""),
            run["user"],
            run["name"] or "",
        ]
        for run in runs
    ]
    titles = ["run", "status", "step", "task", "map", "lr", "loss", "alerts", "by", "name"]
    return table(rows, titles, numbers=("run", "step", "lr", "loss", "alerts")) if rows else "No runs."


def run_page(
    run: dict[str, Any], alerts: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]] = (),
    verdict: dict[str, Any] | None = None,
) -> Group:  # fmt: skip
    """One run in full: status, verdict, history, result, configuration, alerts."""
    title = f"run {run['id']}" + (f" {run['name']!r}" if run["name"] else "")
    of = "" if run["steps"] is None else f" of {run['steps']}"
    lines = [
        Text.assemble((printable(title), "bold"), "  ", status_text(run["status"]), "  ", printable(run["status_reason"])),
        Text(f"  step {run['step']}{of}, attempt {run['attempt']}" + _speed(run)),
    ]
    if "bytes_stored" in run:  # older servers do not send this field
        lines.append(Text(f"  size {size_text(run['bytes_stored'])}"))
    where = f" on {run['host']}" + (f", {run['gpu_name']}" if run["gpu_name"] else "") if run["host"] else ""
    lines.append(Text(printable(f"  by {run['user']}{where}")))
    if run.get("tags"):
        lines.append(Text(printable(f"  tags {', '.join(run['tags'])}")))
    lines += [Text(printable(f"  note {line}")) for line in run.get("notes", "").splitlines()]
    if run["waits_for"]:
        lines.append(Text(printable(f"  waits for {run['waits_for']}")))
    lines += _verdict_lines(verdict) if verdict else []
    if events:
        lines.append(Text("history", "bold"))
        lines += [Text("  …")] * (len(events) > EVENTS_SHOWN)
        lines += [Text.assemble("  ", event_line(event)) for event in events[-EVENTS_SHOWN:]]
    for part in ("result", "divergence", "config", "reported_config", "how", "environment"):
        if run.get(part):
            lines.append(Text(part, "bold"))
            lines += [
                Text.assemble("  ", (path, "cyan"), f" = {printable(_value_text(value))}")
                for path, value in (leaves(run[part]) if isinstance(run[part], dict) else [(part, run[part])])
            ]
    if alerts:
        lines.append(Text(f"{len(alerts)} alerts", "bold"))
        lines += [Text.assemble("  ", alert_line(alert)) for alert in alerts[:ALERTS_SHOWN]]
    return Group(*lines)


def _progress(run: dict[str, Any]) -> str:
    return str(run["step"]) if run["steps"] is None else f"{run['step']}/{run['steps']}"


def _task(run: dict[str, Any]) -> str:
    """The task of a trained run; "reported" for a run that another program trains."""
    return "reported" if run.get("kind") == "reported" else str(run["config"]["task"]["name"])


def _rate(run: dict[str, Any]) -> str:
    lr = (run["how"] or {}).get("lr") if run.get("kind") == "reported" else run["config"]["optimizer"]["lr"]
    return f"{lr:g}" if isinstance(lr, int | float) else "" if lr is None else str(lr)


def _speed(run: dict[str, Any]) -> str:
    rate = f", {run['steps_per_second']:.3g} steps/s" if run["steps_per_second"] else ""
    return rate + (f", {duration_text(run['eta_seconds'])} left" if run["eta_seconds"] is not None else "")


def _verdict_lines(verdict: dict[str, Any]) -> list[Text]:
    from stablessm_core.verdict import LABELS  # only here, because the other views need no verdict
    from stablessm_core.verdict.words import CONFIDENCE

    cause = ""
    if verdict["cause"]:
        cause = f" {LABELS.get(verdict['cause'], verdict['cause'])} ({CONFIDENCE[verdict['confidence']][0]})"
    lines = [Text.assemble(("verdict", "bold"), cause), Text(printable(f"  {verdict['summary']}"))]
    lines += [Text(printable(f"  step {event['step']}: {event['text']}")) for event in verdict["events"]]
    lines += [Text(printable(f"  {evidence['text']}")) for evidence in verdict["confirmed"]]
    for advice in verdict["try"]:
        change = " ".join(f"{path}={_value_text(value)}" for path, value in advice["change"].items())
        lines.append(Text.assemble("  try ", (printable(change), "cyan"), printable(f": {advice['because']}")))
    return lines


def alert_line(alert: dict[str, Any]) -> Text:
    color = "red" if alert["severity"] == "critical" else "yellow"
    return Text.assemble((alert["severity"], color), printable(f" step {alert['step']}: {alert['message']}"))


def event_line(event: dict[str, Any]) -> Text:
    truncated = f" (steps from {event['truncated_from']} on were deleted)" if event["truncated_from"] else ""
    reason = f": {printable(event['reason'])}" if event["reason"] not in ("", event["event"]) else ""
    what = f"{event['event'].replace('_', ' ')} at step {event['step']}"
    return Text(f"{time_text(event['at'], seconds=True)}  {what}{reason}{truncated}")


def comparison(result: dict[str, Any]) -> Group:
    """The runs of a comparison, their differing settings, |grad| / |w|, groups, pairwise differences, and claims."""
    parts: list[RenderableType] = [run_table(result["runs"])]
    if result["differences"]:
        titles = ["field", *(f"#{run['id']}" for run in result["runs"])]
        parts += ["", table([[d["field"], *map(_value_text, d["values"])] for d in result["differences"]], titles)]
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
            [_key_text(g["key"]), str(g["rank"]), *ratios(g), str(g["lost"]), *(number(g["final_loss"][n]) for n in statistics)]
            for g in sorted(result["groups"], key=lambda group: int(group["rank"]))
        ]
        titles = ["group", "rank", "finite", "stable", "lost", "median loss", "25 %", "75 %"]
        parts += ["", Text("groups, best first", "bold"), table(rows, titles, numbers=titles[1:])]
    if paired := result.get("paired"):
        rows = [
            [row["label"], number(row["median"]), number(row["q25"]), number(row["q75"]), f"{row['pairs']} of {row['of']}",
             f"{row['lower']}/{row['higher']}", str(row["only_reference"]), str(row["only_this"])]
            for row in paired["rows"]
        ]  # fmt: skip
        titles = ["group", "median", "25 %", "75 %", "pairs", "lower/higher", "lost, other finite", "finite, other lost"]
        title = printable(f"differences of the final loss from {paired['against']}, pair by pair")
        parts += ["", Text(title, "bold"), table(rows, titles, numbers=titles[1:])]
    for claim in result.get("claims") or ():
        parts += ["", Text(printable(claim["asked"]), "bold"), Text(printable(claim["text"]))]
    return Group(*parts)


def _key_text(key: dict[str, Any]) -> str:
    return ", ".join(f"{short_path(path)}={_value_text(value)}" for path, value in key.items())


def leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted path, value) of every leaf of nested dictionaries."""
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        found += leaves(item, f"{prefix}{key}.") if isinstance(item, dict) else [(f"{prefix}{key}", item)]
    return found


def _value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "null" if value is None else str(value)
