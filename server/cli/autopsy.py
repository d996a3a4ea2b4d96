"""`stablessm autopsy`: asks for the autopsy of a run, waits for it, and prints it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from server.cli.connection import connect
from server.cli.options import DATA_DIR, RUN_ID
from server.cli.terminal import number, printable, show, table
from stablessm_core.autopsy.changes import CHANGES
from stablessm_core.autopsy.words import BEGINS, describe_classes, describe_measurements
from stablessm_core.client import Client
from stablessm_core.verdict.float64 import compare_with_float64

ASK_SECONDS = 0.5
OPEN = ("queued", "running")


@click.command()
@RUN_ID
@click.option(
    "--step", type=click.IntRange(1), help="Repeat this step. Default: the step at which a number became NaN or infinite."
)
@click.option("--again", is_flag=True, help="Ask for a new autopsy even if there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print the API's JSON.")
@DATA_DIR
def autopsy(run_id: int, step: int | None, again: bool, as_json: bool, data_dir: Path | None) -> None:
    """Show what the fatal step of a run computed: a worker trains the step again, bit for bit, with instruments.

    The exit status is 0 if there are findings, else 1.
    """
    with connect(data_dir) as client:
        found = client.autopsy(run_id)
        missing = found["state"] in ("none", "off") or (step is not None and found["step"] != step)
        waits = found["state"] in OPEN and found["requested_by"] is None  # until training pauses, because nobody asked for it
        if waits or (found["state"] not in OPEN and (missing or again)):
            found = client.request_autopsy(run_id, step)
        try:
            found = _wait(client, run_id, found)
        except KeyboardInterrupt:
            click.echo(f"The autopsy continues; `stablessm autopsy {run_id}` shows it.", err=True)
            sys.exit(130)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        show(report(found))
    sys.exit(0 if found["state"] == "done" and found["refused"] is None else 1)


def _wait(client: Client, run_id: int, found: dict[str, Any]) -> dict[str, Any]:
    """The autopsy once it has ended. Each new state is one line on standard error."""
    said = None
    while found["state"] in OPEN:
        line = f"the autopsy of run {run_id} is {found['state']}" + (f": {found['reason']}" if found["reason"] else "")
        if line != said:
            click.echo(printable(line), err=True)
            said = line
        time.sleep(ASK_SECONDS)
        found = client.autopsy(run_id)
    return found


def report(found: dict[str, Any]) -> RenderableType:
    """An ended autopsy in words. found: the AutopsyAnswer."""
    title = f"autopsy of run {found['run_id']}"
    if found["state"] != "done":
        return Text(printable(f"{title}: {found['state']}" + (f": {found['reason']}" if found["reason"] else "")))
    if found["refused"] is not None:
        return Text(printable(f"{title}, step {found['step']}: no result: {found['refused']}"))
    since = "the initial weights" if found["from_step"] == 0 else f"the state after step {found['from_step']:,}"
    same = "The losses and gradients that it computed again equal the recorded ones, bit for bit."
    lines: list[RenderableType] = [
        Text(f"{title}, step {found['step']:,}", "bold"),
        Text(f"  Trained again from {since} in {number(found['seconds'])} s. {same}"),
        Text("  This step made a number that is not finite." if found["fatal"] else "  Every number of this step is finite."),
        Text("batch", "bold"),
        *_batch(found["batch"]),
        Text("first result that is not finite", "bold"),
        Text(printable(f"  {place(found['first_nonfinite'])}")),
        Text("modules, in order of computation", "bold"),
        _modules(found["modules"]),
    ]
    if (wide := found["float64"]) is not None:
        lines += [Text("the same step in float64", "bold"), *_float64(wide, found)]
    if more := describe_measurements(found, number):
        lines += [Text("onset and gradient", "bold"), *(Text(printable(f"  {one}")) for one in more)]
    lines += _counterfactuals(found)
    lines += [Text(printable(f"  {note}")) for note in found["notes"] or ()]
    return Group(*lines)


def place(first: dict[str, Any] | None) -> str:
    """Where the first result that is not finite was computed, as one sentence."""
    if first is None:
        return "None."
    where = f" in {first['module']}" if first["module"] else ""
    at = f" at index ({', '.join(map(str, first['index']))})" if first["index"] else ""
    many = f"; {first['count']:,} numbers are not finite" if first["count"] > 1 else ""
    text = f"{first['pass'].capitalize()} pass: {first['operation']}{where} made {first['value']}{at}{many}."
    if first["largest_input"] is not None:
        text += f" The largest magnitude among its inputs was {number(first['largest_input'])}."
    if first["layer"] is not None:
        part = f", eigenvalue {first['eigenvalue']}" if first["eigenvalue"] is not None else ""
        text += f" It belongs to layer {first['layer']}{part}."
    return text


def _batch(batch: dict[str, Any]) -> Iterable[Text]:
    for what in ("input", "target"):
        if batch[f"largest_{what}"] is not None:
            usual = batch[f"usual_{what}"]
            compared = "" if usual is None else f"; usual in this run: {number(usual)}"
            yield Text(f"  largest |{what}| {number(batch[f'largest_{what}'])}{compared}")
    yield Text(f"  {batch['nonfinite']:,} numbers are not finite" if batch["nonfinite"] else "  every number is finite")
    if batch.get("classes"):
        yield Text(f"  {describe_classes(batch['classes'])}")


def _modules(modules: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [one["module"] or "the model", one["pass"], number(one["largest"]), number(one["largest_float64"]),
         f"{one['nonfinite']:,}" if one["nonfinite"] else ""]
        for one in modules
    ]  # fmt: skip
    return table(rows, ["module", "pass", "largest", "in float64", "not finite"], numbers=("largest", "in float64", "not finite"))


def _float64(wide: dict[str, Any], found: dict[str, Any]) -> Iterable[Text]:
    numbers = f"loss {number(wide['loss'])}, largest magnitude {number(wide['largest'])}"
    if wide["finite"]:
        yield Text(printable(f"  Every number is finite: {numbers}. {compare_with_float64(found)}".rstrip()))
    else:
        yield Text(f"  It is not finite either: {numbers}.")
        yield Text(printable(f"  {place(wide['first_nonfinite'])}"))
    if wide["narrow"]:
        yield Text(printable(f"  These operations did not compute in float64: {', '.join(wide['narrow'])}."))


def _counterfactuals(found: dict[str, Any]) -> list[RenderableType]:
    trials = found["counterfactuals"]
    if not trials:
        return []
    trouble = found["trouble"]
    sign = f"; the trouble begins in step {trouble['step']:,}: {BEGINS[trouble['kind']]}" if trouble else ""
    rows = []
    for one in trials:
        settings = " ".join(f"{path}={value}" for path, value in one["settings"].items())
        fate = "not tried" if one["lives"] is None else f"lives to step {one['step']:,}" if one["lives"] else ""
        rows.append([
            CHANGES[one["change"]].label, settings, f"{one['from_step']:,}", fate or f"dies at step {one['step']:,}",
            printable(one["reason"] or ""),
        ])  # fmt: skip
    titles = ["change", "settings", "after step", "result", "reason"]
    return [Text(f"with one change{sign}", "bold"), table(rows, titles, numbers=("after step",))]
