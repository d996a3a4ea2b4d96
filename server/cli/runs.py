"""Commands about runs, all of them over REST: submit, list, show, follow, cancel, resume, compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, RUN_ID


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="For example optimizer.lr=0.01; may be repeated.")
@click.option("--key", help="Idempotency key: the same key submits once.")
@click.option("--queue", help="Only workers that serve it take the run. Default: default.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher starts first. Default: 0.")
@click.option("--gpu", help="Part of a GPU's name, such as H200: only workers with such a GPU take the run.")
@click.option("--watch", "until_end", is_flag=True, help="Follow the run to its end.")
@DATA_DIR
def submit(
    file: Any, changes: tuple[str, ...], key: str | None, until_end: bool, data_dir: Path | None, **place: Any
) -> None:  # fmt: skip
    """Submit a run: FILE holds its configuration as JSON (- reads it from standard input)."""
    from server.cli.terminal import follow
    from stablessm_core.config import with_settings

    config = read_json(file, "a configuration")
    with connect(data_dir) as client:
        run = client.submit(with_settings(config, dict(map(read_change, changes))), key=key, **place)
        click.echo(f"run {run['id']} is {run['status']}: {client.url}{run['url']}")
        if run["waits_for"]:
            click.echo(f"it waits for {run['waits_for']}")
        if until_end:
            sys.exit(follow(client, run["id"]))


@click.command()
@click.argument("filter", nargs=-1)
@click.option("--status", help="Only these, separated by commas.")
@click.option("--sort", help="A field, with - before it for descending.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@DATA_DIR
def runs(filter: tuple[str, ...], status: str | None, sort: str | None, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """List runs, for example: stablessm runs "reparam=best lr>=0.005"."""
    from server.cli.terminal import run_table, show

    with connect(data_dir) as client:
        found = list(client.runs(" ".join(filter) or None, status=status, sort=sort, limit=limit))
    if as_json:
        click.echo("\n".join(json.dumps(run) for run in found))
    else:
        show(run_table(found))


@click.command()
@RUN_ID
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def show(run_id: int, as_json: bool, data_dir: Path | None) -> None:
    """Show one run: status, verdict, progress, history, result, configuration, alerts."""
    from server.cli import terminal

    with connect(data_dir) as client:
        run = client.run(run_id)
        if as_json:
            click.echo(json.dumps(run, indent=2))
        else:
            past = (list(client.alerts(run_id)), client.history(run_id)["events"])
            terminal.show(terminal.run_page(run, *past, client.verdict(run_id)))


@click.command()
@RUN_ID
@DATA_DIR
def watch(run_id: int, data_dir: Path | None) -> None:
    """Follow a run live: progress, loss, alerts. Exit status 0 when it finishes, 2 when it does not."""
    from server.cli.terminal import follow

    with connect(data_dir) as client:
        sys.exit(follow(client, run_id))


@click.command()
@RUN_ID
@DATA_DIR
def cancel(run_id: int, data_dir: Path | None) -> None:
    """Cancel a queued or running run."""
    with connect(data_dir) as client:
        run = client.cancel(run_id)
    click.echo(f"run {run_id} is {run['status']}" + (", cancel requested" if run["status"] == "running" else ""))


@click.command()
@RUN_ID
@DATA_DIR
def resume(run_id: int, data_dir: Path | None) -> None:
    """Queue an ended run again, to continue after its last checkpoint."""
    with connect(data_dir) as client:
        diverged = client.run(run_id)["status"] == "diverged"
        click.echo(f"run {run_id} is {client.resume(run_id)['status']}")
    if diverged:
        click.echo(f"it repeats the numbers it had and diverges again; stablessm fork {run_id} --freeze changes something")


@click.command()
@RUN_ID
@click.option(
    "--from-step", type=click.IntRange(0), help="Step of the checkpoint; 0: initial weights. Default: the last good one."
)
@click.option("--set", "changes", multiple=True, metavar="PATH=VALUE", help="For example optimizer.lr=0.01; may be repeated.")
@click.option("--freeze", is_flag=True, help="Freeze the recurrence: optimizer.recurrent_lr=0.")
@click.option("--map", "map_", metavar="NAME", help="Another map, every eigenvalue where it is, for example best.")
@click.option("--lr", type=float, help="Another learning rate: optimizer.lr.")
@click.option("--watch", "until_end", is_flag=True, help="Follow the fork to its end.")
@DATA_DIR
def fork(
    run_id: int, from_step: int | None, changes: tuple[str, ...], freeze: bool, map_: str | None, lr: float | None,
    until_end: bool, data_dir: Path | None,
) -> None:  # fmt: skip
    """Go on from a run's checkpoint with something changed, to see whether it still dies; without changes it repeats itself."""
    from server.cli.terminal import follow

    settings = dict(map(read_change, changes))
    settings |= {"optimizer.recurrent_lr": 0} if freeze else {}
    settings |= {"model.reparameterization.name": map_} if map_ else {}
    settings |= {"optimizer.lr": lr} if lr is not None else {}
    with connect(data_dir) as client:
        made = client.fork(run_id, settings, from_step=from_step)
        click.echo(f"run {made['id']}, forked from run {run_id} at step {made['forked_at_step']}: {client.url}{made['url']}")
        if until_end:
            sys.exit(follow(client, made["id"]))


@click.command()
@click.argument("run_ids", nargs=-1, type=click.IntRange(1), metavar="RUN...")
@click.option("--q", help="Runs that match a filter instead.")
@click.option("--sweep", type=click.IntRange(1), help="Runs of a sweep instead.")
@click.option("--group-by", help="Dotted path, for example model.reparameterization.name.")
@click.option("--against", help="The group that the others are paired with. Default: the best.")
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def compare(
    run_ids: tuple[int, ...], q: str | None, sweep: int | None, group_by: str | None, against: str | None, as_json: bool,
    data_dir: Path | None,
) -> None:  # fmt: skip
    """Compare runs: what differs, the range of |grad| / |w| of each, and groups with finite / total and stable / total."""
    from server.cli.terminal import comparison, show

    with connect(data_dir) as client:
        result = client.compare(run_ids or None, q=q, sweep=sweep, group_by=group_by, against=against)
    if as_json:
        click.echo(json.dumps(result))
    else:
        show(comparison(result))


def read_json(file: Any, what: str) -> dict[str, Any]:
    """The JSON object in a file, or on standard input. Raises ClickException."""
    name = getattr(file, "name", "the input")
    try:
        value = json.load(file)
    except ValueError as error:
        raise click.ClickException(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.ClickException(f"{name} holds a {type(value).__name__}; {what} is a JSON object")
    return value


def read_change(text: str) -> tuple[str, Any]:
    """("optimizer.lr", 0.01) of "optimizer.lr=0.01". Raises ClickException."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise click.ClickException(f"--set is {text!r}; expected PATH=VALUE, for example optimizer.lr=0.01")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value  # a bare word is a string
