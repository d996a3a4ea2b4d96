"""Commands about sweeps, over REST: submit one, list them, and one table of what came out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.runs import read_change, read_json

if TYPE_CHECKING:
    from stablessm_core.client import Client

POLL_SECONDS = 1.0
OPEN = ("queued", "running")
FORMATS = {".csv": "csv", ".parquet": "parquet", ".md": "markdown", ".tex": "latex", ".json": "json"}
SWEEP_ID = click.argument("sweep_id", type=click.IntRange(1), metavar="SWEEP")


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="In its base, for example train.steps=500.")
@click.option("--name", help="Of the sweep.")
@click.option("--queue", help="Only workers that serve it take the runs. Default: default.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher starts first. Default: 0.")
@click.option("--gpu", help="Part of a GPU's name, such as H200: only workers with such a GPU take the runs.")
@click.option("--watch", "until_end", is_flag=True, help="Follow its runs to their ends; exit status 2 unless all finish.")
@DATA_DIR
def sweep(file: Any, changes: tuple[str, ...], until_end: bool, data_dir: Path | None, **given: Any) -> None:
    """Submit a sweep: FILE holds {"base": configuration, "grid": {"optimizer.lr": [...]}} as JSON (- reads standard input)."""
    from stablessm_core.config import with_settings

    body = read_json(file, "a sweep") | {name: value for name, value in given.items() if value is not None}
    for part in ("base", "grid"):
        if not isinstance(body.get(part), dict):
            raise click.ClickException(f"a sweep needs {part!r}, a JSON object; given are {', '.join(body)[:200] or 'no fields'}")
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
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@DATA_DIR
def sweeps(name: str, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """List sweeps, newest first, of which NAME is a part of the name."""
    from server.cli.terminal import show, sweep_list

    with connect(data_dir) as client:
        found = list(client.sweeps(name or None, limit=limit))
    if as_json:
        click.echo("\n".join(json.dumps(one) for one in found))
    else:
        show(sweep_list(found))


@click.command("sweep-table")
@SWEEP_ID
@click.option("--format", "form", type=click.Choice(list(FORMATS.values())), help="Default: by the ending of -o, else markdown.")
@click.option(
    "--group-by",
    default="",
    help="Columns, separated by commas: a row per group, with finite / total, stable / total and medians.",
)
@click.option("--columns", default="", help="Only these columns, separated by commas, in this order.")
@click.option("--grid", is_flag=True, help="What became of each cell instead, maps down and learning rates across.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File. Default: standard output.")
@DATA_DIR
def table(
    sweep_id: int, form: str | None, group_by: str, columns: str, grid: bool, output: Path | None, data_dir: Path | None
) -> None:
    """Write every run of a sweep with its final numbers, also those that diverged or failed, as one table."""
    from server.cli.terminal import printable

    form = form or (FORMATS.get(output.suffix) if output else None) or "markdown"
    if form == "parquet" and output is None:
        raise click.ClickException("Parquet is no text; -o says which file to write")
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
    """Say how each run ends; 0 if all finished, else 2. Ctrl-C stops looking, not training."""
    from server.cli.terminal import printable

    ended: set[int] = set()
    try:
        while True:
            found = client.sweep(sweep_id)
            for run in found["runs"]:
                if run["status"] not in OPEN and run["id"] not in ended:
                    ended.add(run["id"])
                    click.echo(printable(f"run {run['id']} {run['name']}: {run['status']}{_how(run)}"))
            if len(ended) >= len(found["runs"]):
                break
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        click.echo(f"Sweep {sweep_id} goes on; `stablessm sweep-table {sweep_id}` shows what it has come to.")
        return 130
    stable = f"{found['stable']} of {found['total']} with every eigenvalue inside the boundary"
    click.echo(f"{found['finite']} of {found['total']} runs finished with a finite loss; {stable}")
    return 0 if found["statuses"].get("finished", 0) == found["total"] else 2


def _how(run: dict[str, Any]) -> str:
    from server.cli.terminal import number

    if run["status"] == "finished":
        loss = (run["result"] or {}).get("train_loss")
        return f", loss {number(loss)}" if loss is not None else ""
    return f" at step {run['step']}" + (f": {run['status_reason']}" if run["status_reason"] else "")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
