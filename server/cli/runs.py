"""Commands for runs: submit, list, show, follow, cancel, resume, fork, compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from server.cli import run_views, terminal
from server.cli.connection import connect
from server.cli.follow import follow
from server.cli.options import DATA_DIR, RUN_ID, join_values
from server.cli.terminal import printable
from stablessm_core.spec.paths import with_settings


@click.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a setting, such as optimizer.lr=0.01; can be repeated."
)
@click.option("--key", help="Idempotency key: a second submission with the same key returns the first run.")
@click.option("--queue", help="Queue of the run. Default: default.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Runs of higher priority start first. Default: 0.")
@click.option("--gpu", help="Train only on a GPU whose name contains this, such as H200.")
@click.option("--project", help="Project of the run.")
@click.option("--watch", "until_end", is_flag=True, help="Follow the run until it ends.")
@DATA_DIR
def submit(
    file: Any, changes: tuple[str, ...], key: str | None, until_end: bool, data_dir: Path | None, **queueing: Any
) -> None:  # fmt: skip
    """Submit a run. FILE contains its configuration as JSON; - reads standard input."""
    config = read_json(file, "a configuration")
    with connect(data_dir) as client:
        run = client.submit(with_settings(config, dict(map(read_change, changes))), key=key, **queueing)
        click.echo(f"run {run['id']} is {run['status']}: {client.url}{run['url']}")
        if run["waits_for"]:
            click.echo(f"it waits for {run['waits_for']}")
        if until_end:
            sys.exit(follow(client, run["id"]))


@click.command()
@click.argument("filter", nargs=-1)
@click.option("--status", help="Only runs with these statuses, separated by commas.")
@click.option("--project", help="Only runs of this project.")
@click.option("--sort", help="Sort by this field; - before it means descending order.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@DATA_DIR
def runs(
    filter: tuple[str, ...], status: str | None, project: str | None, sort: str | None, limit: int, as_json: bool,
    data_dir: Path | None,
) -> None:  # fmt: skip
    """List runs, for example: stablessm runs "map=best lr>=0.005"."""
    with connect(data_dir) as client:
        q = of_project(" ".join(filter), project)
        found = list(client.runs(q or None, status=status, sort=sort, limit=limit))
    if as_json:
        click.echo("\n".join(json.dumps(run) for run in found))
    else:
        terminal.show(run_views.run_table(found))


@click.command()
@RUN_ID
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def show(run_id: int, as_json: bool, data_dir: Path | None) -> None:
    """Show one run: status, verdict, history, result, configuration, alerts."""
    with connect(data_dir) as client:
        run = client.run(run_id)
        if as_json:
            click.echo(json.dumps(run, indent=2))
        else:
            alerts, events = list(client.alerts(run_id)), client.history(run_id)["events"]
            terminal.show(run_views.run_page(run, alerts, events, client.verdict(run_id)))


@click.command()
@RUN_ID
@DATA_DIR
def watch(run_id: int, data_dir: Path | None) -> None:
    """Follow a run live: progress, loss, alerts. The exit status is 0 if the run finishes, else 2."""
    with connect(data_dir) as client:
        sys.exit(follow(client, run_id))


@click.command()
@RUN_ID
@DATA_DIR
def cancel(run_id: int, data_dir: Path | None) -> None:
    """Cancel a queued or running run."""
    with connect(data_dir) as client:
        run = client.cancel(run_id)
    click.echo(f"run {run_id} is {run['status']}" + (", cancellation requested" if run["status"] == "running" else ""))


@click.command()
@RUN_ID
@DATA_DIR
def resume(run_id: int, data_dir: Path | None) -> None:
    """Queue an ended run again; it resumes from its last checkpoint."""
    with connect(data_dir) as client:
        diverged = client.run(run_id)["status"] == "diverged"
        click.echo(f"run {run_id} is {client.resume(run_id)['status']}")
    if diverged:
        click.echo(f"it will repeat its numbers and diverge again; fork it to change a setting: stablessm fork {run_id} --freeze")


@click.command()
@RUN_ID
@click.option(
    "--from-step",
    type=click.IntRange(0),
    help="Step of the checkpoint; 0 for the initial weights. Default: the newest checkpoint before the trouble, or 0.",
)
@click.option(
    "--set", "changes", multiple=True, metavar="PATH=VALUE", help="Change a setting, such as optimizer.lr=0.01; can be repeated."
)
@click.option("--freeze", is_flag=True, help="Freeze the recurrence (optimizer.recurrent_lr=0).")
@click.option("--map", "map_", metavar="NAME", help="Use another map, such as best. Every eigenvalue keeps its value.")
@click.option("--lr", type=float, help="Use another learning rate (optimizer.lr).")
@click.option("--watch", "until_end", is_flag=True, help="Follow the fork until it ends, and print what it shows about RUN.")
@DATA_DIR
def fork(
    run_id: int, from_step: int | None, changes: tuple[str, ...], freeze: bool, map_: str | None, lr: float | None,
    until_end: bool, data_dir: Path | None,
) -> None:  # fmt: skip
    """Start a run from a checkpoint of RUN with changed settings. Without changes the fork repeats RUN."""
    settings = dict(map(read_change, changes))
    settings |= {"optimizer.recurrent_lr": 0} if freeze else {}
    settings |= {"model.reparameterization.name": map_} if map_ else {}
    settings |= {"optimizer.lr": lr} if lr is not None else {}
    with connect(data_dir) as client:
        made = client.fork(run_id, settings, from_step=from_step)
        click.echo(f"run {made['id']}, forked from run {run_id} at step {made['forked_at_step']}: {client.url}{made['url']}")
        if until_end:
            status = follow(client, made["id"])
            shows = next((one["text"] for one in client.forks(run_id) if one["id"] == made["id"]), None)
            if shows:
                click.echo(printable(shows))
            sys.exit(status)


@click.command()
@click.argument("run_ids", nargs=-1, type=click.IntRange(1), metavar="RUN...")
@click.option("--q", help="Compare the runs that match this filter.")
@click.option("--sweep", type=click.IntRange(1), help="Compare the runs of this sweep.")
@click.option("--project", help="Compare the runs of this project; with --q, those that match the filter.")
@click.option(
    "--group-by",
    multiple=True,
    callback=join_values,
    metavar="FIELD",
    help="Group by this field, such as map or optimizer.lr; can be repeated.",
)
@click.option("--against", help="The group that all others are compared with. Default: the best.")
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def compare(
    run_ids: tuple[int, ...], q: str | None, sweep: int | None, project: str | None, group_by: str | None,
    against: str | None, as_json: bool,
    data_dir: Path | None,
) -> None:  # fmt: skip
    """Compare runs: their differences, the range of |grad| / |w|, and groups with finite / total and stable / total."""
    with connect(data_dir) as client:
        result = client.compare(
            run_ids or None, q=of_project(q or "", project) or None, sweep=sweep, group_by=group_by, against=against
        )
    if as_json:
        click.echo(json.dumps(result))
    else:
        terminal.show(run_views.comparison(result))


def of_project(q: str, project: str | None) -> str:
    """The filter `q`, limited to the runs of a project."""
    if project is None:
        return q
    quoted = project.replace("\\", "\\\\").replace('"', '\\"')
    return f'project="{quoted}"' + (f" ({q})" if q.strip() else "")


def read_json(file: Any, what: str) -> dict[str, Any]:
    """The JSON object in a file. Raises ClickException. what: name of the object in error messages."""
    name = getattr(file, "name", "the input")
    try:
        value = json.load(file)
    except ValueError as error:
        raise click.ClickException(f"{name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.ClickException(f"{name} contains a {type(value).__name__}; {what} must be a JSON object")
    return value


def read_change(text: str) -> tuple[str, Any]:
    """("optimizer.lr", 0.01) for "optimizer.lr=0.01"; a value that is not JSON is kept as a string. Raises ClickException."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise click.ClickException(f"--set is {text!r}; expected PATH=VALUE, for example optimizer.lr=0.01")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value
