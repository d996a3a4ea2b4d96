"""Commands about deleted runs, over REST: into the trash, out of it, what is there."""

from __future__ import annotations

import json
from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=click.IntRange(1), metavar="RUN...")
@DATA_DIR
def delete(run_ids: tuple[int, ...], data_dir: Path | None) -> None:
    """Put ended runs into the trash; `stablessm undelete` brings them back while they are there."""
    with connect(data_dir) as client:
        hours = client.occupied()["hours"]
        for run_id in run_ids:
            client.delete(run_id)
            click.echo(f"run {run_id} is " + (f"in the trash for {hours:g} hours" if hours else "deleted for good"))


@click.command()
@click.argument("run_ids", nargs=-1, required=True, type=click.IntRange(1), metavar="RUN...")
@DATA_DIR
def undelete(run_ids: tuple[int, ...], data_dir: Path | None) -> None:
    """Bring runs back from the trash."""
    with connect(data_dir) as client:
        for run_id in run_ids:
            click.echo(f"run {run_id} is back: {client.url}{client.undelete(run_id)['url']}")


@click.command()
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def trash(as_json: bool, data_dir: Path | None) -> None:
    """List the newest runs of the trash, until when each can be brought back, and what all runs occupy."""
    from server.cli.terminal import show, trash_page

    with connect(data_dir) as client:
        found = client.occupied() | {"runs": list(client.trash(limit=100))}
    if as_json:
        click.echo(json.dumps(found))
    else:
        show(trash_page(found))
