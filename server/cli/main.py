"""The command line: starting the service here, and using one over REST.

Imports are inside the commands: `stablessm up` must have its worker on the way before anything slow is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli.connection import client as _client
from server.cli.queues import queue
from server.cli.tokens import token
from stablessm_core import __version__

if TYPE_CHECKING:
    from server.database.connection import Database
    from server.settings import Settings
    from stablessm_core.client import Client

DATA_DIR = click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False), help="State. Default: .stablessm")
DATABASE = click.option("--database-url", help="sqlite:///... or postgresql+psycopg://... Default: SQLite in the data directory.")
BROKER = click.option("--broker-url", help="redis://... Default: workers poll the database.")
DATA_ROOT = click.option("--data-root", type=click.Path(path_type=Path, file_okay=False), help="Data sets.")
HOST = click.option("--host", default="127.0.0.1", show_default=True)
NO_AUTH = click.option("--no-auth", is_flag=True, help="No token; on a loopback address only.")
RUN_ID = click.argument("run_id", type=click.IntRange(1), metavar="RUN")


class Commands(click.Group):
    """Turns refusals into one line on stderr and exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if (text := _one_line(error)) is None:
                raise
            raise click.ClickException(text) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="stablessm")
def main() -> None:
    """Train state-space models and watch the gradient-over-weight ratio of every eigenvalue, live."""


@main.command()
@HOST
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@NO_AUTH
@click.option("--demo", is_flag=True, help="Submit nine demo runs if nothing was ever submitted here.")
def up(demo: bool, **options: Any) -> None:
    """Start everything on this machine: database, web server and a worker."""
    from server.cli.up import up as start

    sys.exit(start(_settings(**options), demo=demo, say=click.echo))


@main.command()
@HOST
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@NO_AUTH
@click.option("--fd", type=int, hidden=True)
@click.option("--parent-pid", type=int, hidden=True)
def serve(fd: int | None, parent_pid: int | None, **options: Any) -> None:
    """Start the web server alone. The database must be migrated."""
    if parent_pid is not None:
        from server.parent_death import die_with_parent

        die_with_parent(parent_pid)
    from server.http.serving import serve as run

    sys.exit(run(_settings(**options), fd))


@main.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Start a worker that trains queued runs (see `stablessm worker --help`)."""
    import os

    os.execv(sys.executable, [sys.executable, "-m", "worker", *arguments])  # noqa: S606


@main.command()
@click.option("--to", "revision", default="head", metavar="REVISION", help="A version of the schema, such as 0003.")
@click.option("--lose", is_flag=True, help="Go back although values without a place in the older schema are lost.")
@DATA_DIR
@DATABASE
def migrate(revision: str, lose: bool, **options: Any) -> None:
    """Bring the database's schema up to date, or to another version."""
    with _database(_settings(**options)) as database:
        database.migrate(revision, lose=lose)
    click.echo("The schema is up to date." if revision == "head" else f"The schema is {revision}.")


@main.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE|DIR")
@DATA_DIR
@DATABASE
def backup(target: Path, **options: Any) -> None:
    """Write everything into one file while it runs: database, checkpoints, logs. No token is in it, only their hashes."""
    from server.backup.create import backup as write

    with _database(settings := _settings(**options)) as database:
        file, manifest = write(database, settings.data_dir, target, click.echo)
    click.echo(f"{file}  {file.stat().st_size:,} bytes, SHA-256 of its manifest {manifest.digest}")


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--verify", "only_verify", is_flag=True, help="Only compare every byte with its SHA-256.")
@DATA_DIR
@DATABASE
def restore(file: Path, only_verify: bool, **options: Any) -> None:
    """Bring a backup back into an empty database and data directory, of either engine."""
    if only_verify:
        from server.backup.archive import verify

        found = verify(file)
        rows = sum(table.rows for table in found.tables)
        click.echo(f"{file} is undamaged: schema {found.schema}, {rows:,} rows, manifest {found.digest}")
        return
    from server.backup.restore import restore as bring_back

    with _database(settings := _settings(**options)) as database:
        bring_back(database, settings.data_dir, file, click.echo)
    click.echo("Restored. Start the server and workers; runs that were in training go on from their last checkpoint.")


@main.command()
@click.argument("file", type=click.File("rb"))
@click.option("--set", "settings", multiple=True, metavar="PATH=VALUE", help="For example optimizer.lr=0.01; may be repeated.")
@click.option("--key", help="Idempotency key: the same key submits once.")
@click.option("--queue", help="Only workers that serve it take the run. Default: default.")
@click.option("--priority", type=click.IntRange(-100, 100), help="Higher starts first. Default: 0.")
@click.option("--gpu", help="Part of a GPU's name, such as H200: only workers with such a GPU take the run.")
@click.option("--watch", "follow", is_flag=True, help="Follow the run to its end.")
@DATA_DIR
def submit(
    file: Any, settings: tuple[str, ...], key: str | None, follow: bool, data_dir: Path | None, **place: Any
) -> None:  # fmt: skip
    """Submit a run: FILE holds its configuration as JSON (- reads it from standard input)."""
    from stablessm_core.config import with_settings

    name = getattr(file, "name", "the input")
    try:
        config = json.load(file)
    except ValueError as error:
        raise click.ClickException(f"{name} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise click.ClickException(f"{name} holds a {type(config).__name__}; a configuration is a JSON object")
    with _client(data_dir) as client:
        run = client.submit(with_settings(config, dict(_setting(text) for text in settings)), key=key, **place)
        click.echo(f"run {run['id']} is {run['status']}: {client.url}{run['url']}")
        if run["waits_for"]:
            click.echo(f"it waits for {run['waits_for']}")
        if follow:
            sys.exit(_follow(client, run["id"]))


@main.command()
@click.argument("filter", nargs=-1)
@click.option("--status", help="Only these, separated by commas.")
@click.option("--sort", help="A field, with - before it for descending.")
@click.option("--limit", default=30, show_default=True, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@DATA_DIR
def runs(filter: tuple[str, ...], status: str | None, sort: str | None, limit: int, as_json: bool, data_dir: Path | None) -> None:
    """List runs, for example: stablessm runs "reparam=best lr>=0.005"."""
    from server.cli.terminal import run_table

    with _client(data_dir) as client:
        found = list(client.runs(" ".join(filter) or None, status=status, sort=sort, limit=limit))
    click.echo("\n".join(json.dumps(run) for run in found) if as_json else run_table(found))


@main.command()
@RUN_ID
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def show(run_id: int, as_json: bool, data_dir: Path | None) -> None:
    """Show one run: status, progress, result, configuration, alerts."""
    from server.cli.terminal import run_page

    with _client(data_dir) as client:
        run = client.run(run_id)
        click.echo(json.dumps(run, indent=2) if as_json else run_page(run, client.alerts(run_id)))


@main.command()
@RUN_ID
@DATA_DIR
def watch(run_id: int, data_dir: Path | None) -> None:
    """Follow a run live: progress, loss, alerts. Exit status 0 when it finishes, 2 when it does not."""
    with _client(data_dir) as client:
        sys.exit(_follow(client, run_id))


@main.command()
@RUN_ID
@DATA_DIR
def cancel(run_id: int, data_dir: Path | None) -> None:
    """Cancel a queued or running run."""
    with _client(data_dir) as client:
        run = client.cancel(run_id)
    click.echo(f"run {run_id} is {run['status']}" + (", cancel requested" if run["status"] == "running" else ""))


@main.command()
@RUN_ID
@DATA_DIR
def resume(run_id: int, data_dir: Path | None) -> None:
    """Queue an ended run again, to continue after its last checkpoint."""
    with _client(data_dir) as client:
        click.echo(f"run {run_id} is {client.resume(run_id)['status']}")


@main.command()
@click.argument("run_ids", nargs=-1, type=click.IntRange(1), metavar="RUN...")
@click.option("--q", help="Runs that match a filter instead.")
@click.option("--sweep", type=click.IntRange(1), help="Runs of a sweep instead.")
@click.option("--group-by", help="Dotted path, for example model.reparameterization.name.")
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def compare(
    run_ids: tuple[int, ...], q: str | None, sweep: int | None, group_by: str | None, as_json: bool, data_dir: Path | None
) -> None:
    """Compare runs: what differs, and the range of |grad| / |w| of each."""
    from server.cli.terminal import comparison

    with _client(data_dir) as client:
        result = client.compare(run_ids or None, q=q, sweep=sweep, group_by=group_by)
    click.echo(json.dumps(result) if as_json else comparison(result))


@main.command()
@RUN_ID
@click.argument("names", nargs=-1, metavar="[SERIES]...")
@click.option("--format", "form", type=click.Choice(["csv", "arrow", "json"]), default="csv", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder; - writes one series to stdout.")
@DATA_DIR
def export(run_id: int, names: tuple[str, ...], form: str, output: Path | None, data_dir: Path | None) -> None:
    """Write a run's series to files, every recorded step; all of them if none is named."""
    with _client(data_dir) as client:
        chosen = names or tuple(s["name"] for s in client.catalogue(run_id) if s["points"])
        if output == Path("-"):
            if len(chosen) != 1:
                raise click.ClickException(f"standard output takes one series; {len(chosen)} are chosen")
            sys.stdout.buffer.write(client.download(run_id, chosen[0], form))
            return
        folder = output or Path(f"run-{run_id}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(client.run(run_id), indent=2) + "\n")
        for name in chosen:
            path = folder / f"{name.replace('/', '-')}.{form}"
            path.write_bytes(client.download(run_id, name, form))
            click.echo(f"{path}  {path.stat().st_size:,} bytes")


main.add_command(token)
main.add_command(queue)


@main.command()
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
def doctor(**options: Any) -> None:
    """Check what is needed to train and serve here, and say how to fix what is missing."""
    from server.cli.doctor import examine

    sys.exit(examine(_settings(**options), click.echo))


def _settings(*, no_auth: bool = False, **options: Any) -> Settings:
    from server.settings import Settings

    return Settings.from_environment(auth=not no_auth, **options)


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    from server.database.connection import Database

    database = Database(settings.database_url)
    try:
        yield database
    finally:
        database.close()


def _follow(client: Client, run_id: int) -> int:
    from server.cli.terminal import follow

    return follow(client, run_id)


def _setting(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise click.ClickException(f"--set is {text!r}; expected PATH=VALUE, for example optimizer.lr=0.01")
    try:
        return path, json.loads(value)
    except ValueError:
        return path, value  # a bare word is a string


def _one_line(error: Exception) -> str | None:
    import httpx

    from server.cli.up import UpError
    from stablessm_core.client import ApiError

    if isinstance(error, ApiError):
        hint = "; STABLESSM_TOKEN or --data-dir says where the token is" if error.status == 401 else ""
        return f"{error}{hint}"
    if isinstance(error, httpx.TransportError):
        return f"no server answers ({error}); start one with `stablessm up`, or set STABLESSM_URL"
    return str(error) if isinstance(error, UpError | ValueError) else None
