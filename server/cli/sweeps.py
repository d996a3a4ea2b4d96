"""Commands for sweeps: submit a sweep, list sweeps, and write a table of the runs of a sweep."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from server.cli.connection import connect
from server.cli.options import DATA_DIR, Choice, join_values
from server.cli.runs import read_change, read_json
from server.cli.terminal import duration_text, number, printable, ratios, short_path, show, table, time_text
from stablessm_core.client import Client
from stablessm_core.spec.paths import with_settings
from stablessm_core.telemetry.statuses import OPEN

POLL_SECONDS = 1.0
FORMATS = {".csv": "csv", ".parquet": "parquet", ".md": "markdown", ".tex": "latex", ".json": "json"}
SWEEP_ID = click.argument("sweep_id", type=click.IntRange(1), metavar="SWEEP")


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change the base, for example train.steps=500; can be repeated."
)
@click.option("--name", help="Name of the sweep.")
@click.option("--queue", help="Queue of the runs. Default: default.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Runs of higher priority start first. Default: 0.")
@click.option("--gpu", help="Train only on GPUs whose name contains this, such as H200.")
@click.option("--project", help="Project of the runs.")
@click.option("--trials", type=click.IntRange(1), help="Number of trials of a search.")
@click.option("--seed", type=click.IntRange(0), help="Seed of a search; the same seed gives the same trials.")
@click.option("--key", help="Idempotency key: repeating the command with the same key submits only once.")
@click.option(
    "--watch", "until_end", is_flag=True, help="Follow the runs until all have ended; the exit status is 2 unless all finish."
)
@DATA_DIR
def sweep(
    file: Any, changes: tuple[str, ...], trials: int | None, seed: int | None, until_end: bool, data_dir: Path | None,
    **given: Any,
) -> None:  # fmt: skip
    """Submit a sweep: every combination of a grid, or the trials of a search. FILE contains JSON; - reads standard input.

    \b
    {"base": configuration, "grid": {"optimizer.lr": [0.01, 0.1]}}
    {"base": configuration, "search": {"trials": 20, "seed": 0, "space": {
      "optimizer.lr": {"distribution": "log_uniform", "low": 1e-4, "high": 0.1},
      "model.d_state": {"distribution": "integer", "low": 16, "high": 64},
      "optimizer.name": {"distribution": "choice", "values": ["adamw", "sgd"]}},
      "halving": {"metric": "train/loss", "mode": "min", "first_rung": 100, "factor": 3}}}

    The field halving may be left out. It stops trials that fall behind at a rung, and trials that become unstable.
    """
    body = read_json(file, "a sweep") | {name: value for name, value in given.items() if value is not None}
    for part in ("base", "search" if "search" in body else "grid"):
        if not isinstance(body.get(part), dict):
            raise click.ClickException(
                f"a sweep needs {part!r}, a JSON object; the given fields are {', '.join(body)[:200] or 'none'}"
            )
    drawn = {name: value for name, value in (("trials", trials), ("seed", seed)) if value is not None}
    if drawn and "search" not in body:
        raise click.ClickException(f"--{next(iter(drawn))} needs a search; the given fields are {', '.join(body)[:200]}")
    if drawn:
        body["search"] |= drawn
    body["base"] = with_settings(body["base"], dict(map(read_change, changes)))
    with connect(data_dir) as client:
        made = client.submit_sweep(**body)
        click.echo(f"sweep {made['id']} has {len(made['runs'])} runs: {client.url}{made['url']}")
        if made["runs"][0]["waits_for"]:
            click.echo(f"they wait for {made['runs'][0]['waits_for']}")
        if until_end:
            sys.exit(_follow(client, made["id"]))


@click.command()
@click.argument("name", default="")
@click.option("--project", help="Only sweeps with runs of this project.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@DATA_DIR
def sweeps(name: str, project: str | None, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """List the sweeps whose name contains NAME, newest first."""
    with connect(data_dir) as client:
        found = list(client.sweeps(name or None, project=project, limit=limit))
    if as_json:
        click.echo("\n".join(json.dumps(one) for one in found))
    else:
        show(_sweep_table(found))


@click.command("sweep-table")
@SWEEP_ID
@click.option(
    "--format", "form", type=Choice(list(FORMATS.values())), help="Default: from the suffix of the -o file, else markdown."
)
@click.option(
    "--group-by",
    multiple=True,
    callback=join_values,
    metavar="COLUMN",
    help="Group by this column; can be repeated. Each row is a group, with finite / total, stable / total and medians.",
)
@click.option(
    "--columns", multiple=True, callback=join_values, help="Write only these columns, separated by commas, in this order."
)
@click.option(
    "--grid", is_flag=True, help="Write the outcome of each cell instead: one row per map, one column per learning rate."
)
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File to write. Default: standard output.")
@DATA_DIR
def sweep_table(
    sweep_id: int,
    form: str | None,
    group_by: str | None,
    columns: str | None,
    grid: bool,
    output: Path | None,
    data_dir: Path | None,
) -> None:
    """Write one table of a sweep's runs with their final values, including runs that diverged or failed."""
    form = form or (FORMATS.get(output.suffix) if output else None) or "markdown"
    if form == "parquet" and output is None:
        raise click.ClickException("Parquet is a binary format; give the file with -o")
    if grid and (group_by or columns):
        raise click.ClickException("--grid has its own groups and columns; leave out --group-by and --columns")
    with connect(data_dir) as client:
        if grid:
            content = client.download_sweep_grid(sweep_id, form)
        else:
            content = client.download_sweep_table(sweep_id, form, group_by=_names(group_by), columns=_names(columns))
    if output is not None:
        output.write_bytes(content)
        click.echo(f"{output}  {len(content):,} bytes")
    elif sys.stdout.isatty():
        click.echo("\n".join(map(printable, content.decode().splitlines())))
    else:
        sys.stdout.buffer.write(content)


def _follow(client: Client, sweep_id: int) -> int:
    """Print how each run ends. Returns the exit status: 0 if all runs finished, else 2, and 130 after Ctrl-C, which ends only
    the display."""
    ended: set[int] = set()
    told = 0
    try:
        while True:
            found = client.sweep(sweep_id)
            for run in found["runs"]:
                if run["status"] not in OPEN and run["id"] not in ended:
                    ended.add(run["id"])
                    click.echo(printable(f"run {run['id']} {run['name']}: {run['status']}{_outcome(run)}"))
            if len(ended) > told:
                told = len(ended)
                click.echo(_progress(found))
            if len(ended) >= len(found["runs"]):
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        click.echo(f"Sweep {sweep_id} continues; `stablessm sweep-table {sweep_id}` shows its results.")
        return 130
    stable = f"{found['stable']} of {found['total']} kept every eigenvalue inside the boundary"
    click.echo(f"{found['finite']} of {found['total']} runs finished with a finite loss; {stable}")
    return 0 if found["statuses"].get("finished", 0) == found["total"] else 2


def _progress(sweep: dict[str, Any]) -> str:
    """How many runs have ended and were finite, how many are left, and for about how long."""
    ended, finite = sweep["total"] - sweep["open"], sweep["finite"]
    left = [f"{sweep['statuses'][status]} {status}" for status in ("running", "queued") if sweep["statuses"].get(status)]
    if sweep["eta_seconds"] is not None:
        left.append(f"about {duration_text(sweep['eta_seconds'])} left")
    return ", ".join([f"{finite} of {ended} ended runs finite", *left])


def _outcome(run: dict[str, Any]) -> str:
    if run["status"] == "finished":
        loss = (run["result"] or {}).get("train_loss")
        return f", loss {number(loss)}" if loss is not None else ""
    return f" at step {run['step']}" + (f": {run['status_reason']}" if run["status_reason"] else "")


def _sweep_table(sweeps: list[dict[str, Any]]) -> RenderableType:
    rows = [
        [
            str(sweep["id"]),
            *ratios(sweep),
            ", ".join(f"{count} {status}" for status, count in sweep["statuses"].items()),
            _varied(sweep),
            sweep["user"] or "",
            time_text(sweep["created_at"]),
            duration_text(sweep["eta_seconds"]) if sweep["eta_seconds"] is not None else "",
            sweep["name"] or "",
        ]
        for sweep in sweeps
    ]
    titles = ["sweep", "finite", "stable", "runs", "grid", "by", "created", "left", "name"]
    return table(rows, titles, numbers=("sweep", "finite", "stable")) if rows else "No sweeps."


def _varied(sweep: dict[str, Any]) -> str:
    """What the sweep varies: the number of values of each setting, or the settings of the trials."""
    if sweep["search"]:
        return f"{sweep['search']['trials']} trials: " + ", ".join(map(short_path, sweep["grid"]))
    return ", ".join(f"{short_path(path)} x {len(values)}" for path, values in sweep["grid"].items())


def _names(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]
