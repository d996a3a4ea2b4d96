"""Commands that label a run: its name, its tags and its notes."""

from __future__ import annotations

from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, RUN_ID
from server.cli.terminal import printable


@click.command()
@RUN_ID
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@click.option("--remove", multiple=True, metavar="TAG", help="Remove this tag; can be repeated.")
@DATA_DIR
def tag(run_id: int, tags: tuple[str, ...], remove: tuple[str, ...], data_dir: Path | None) -> None:
    """Add tags to a run or remove them, and print the run's tags. Without TAG and --remove, only print them."""
    with connect(data_dir) as client:
        before: list[str] = client.run(run_id)["tags"]
        if unknown := [name for name in remove if name not in before]:
            raise click.ClickException(f"run {run_id} has no tag {unknown[0]!r}; its tags: {', '.join(before) or 'none'}")
        after = [name for name in dict.fromkeys((*before, *tags)) if name not in remove]
        if after != before:
            after = client.update(run_id, tags=after)["tags"]
    click.echo(printable(f"tags of run {run_id}: {', '.join(after) or 'none'}"))


@click.command()
@RUN_ID
@click.argument("text", required=False)
@DATA_DIR
def note(run_id: int, text: str | None, data_dir: Path | None) -> None:
    """Replace the notes of a run by TEXT; '' removes them. Without TEXT, print the notes."""
    with connect(data_dir) as client:
        notes: str = client.run(run_id)["notes"] if text is None else client.update(run_id, notes=text)["notes"]
    for line in notes.splitlines():
        click.echo(printable(line))
    if not notes:
        click.echo(f"run {run_id} has no notes")


@click.command()
@RUN_ID
@click.argument("name")
@DATA_DIR
def rename(run_id: int, name: str, data_dir: Path | None) -> None:
    """Give a run the name NAME; '' removes its name."""
    with connect(data_dir) as client:
        given = client.update(run_id, name=name.strip() or None)["name"]
    click.echo(printable(f"run {run_id} is called {given!r}" if given else f"run {run_id} has no name"))
