"""Commands for the trash: delete runs, restore them, and list the runs in the trash."""

from __future__ import annotations

import json
from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.terminal import show, size_text, table, time_text


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=click.IntRange(1), metavar="RUN...")
@DATA_DIR
def delete(run_ids: tuple[int, ...], data_dir: Path | None) -> None:
    """Move ended runs to the trash. `stablessm undelete` restores them while they are in the trash."""
    with connect(data_dir) as client:
        hours = client.occupied()["hours"]
        for run_id in run_ids:
            client.delete(run_id)
            click.echo(f"run {run_id} is " + (f"in the trash for {hours:g} hours" if hours else "deleted permanently"))


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=click.IntRange(1), metavar="RUN...")
@DATA_DIR
def undelete(run_ids: tuple[int, ...], data_dir: Path | None) -> None:
    """Restore runs from the trash."""
    with connect(data_dir) as client:
        for run_id in run_ids:
            click.echo(f"run {run_id} is restored: {client.url}{client.undelete(run_id)['url']}")


@click.command()
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def trash(as_json: bool, data_dir: Path | None) -> None:
    """List the newest runs in the trash with the time until which each can be restored, and show the size of all runs."""
    with connect(data_dir) as client:
        found = client.occupied() | {"runs": list(client.trash(limit=100))}
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = [
        [str(run["id"]), run["status"], run["task"], size_text(run["bytes_stored"]), time_text(run["until"]),
         run["deleted_by"] or "", run["name"] or ""]
        for run in found["runs"]
    ]  # fmt: skip
    if rows:
        titles = ["run", "status", "task", "size", "restorable until", "deleted by", "name"]
        show(table(rows, titles, numbers=("run", "size")))
    for label, key in (("in the trash", "trash"), ("kept", "kept")):
        click.echo(f"{label}: {found[key]['runs']:,} runs, {size_text(found[key]['bytes_stored'])}")
