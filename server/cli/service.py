"""Commands that start the service on this machine, or work on its database and files.

Imports are inside the commands: `stablessm up` must have its worker on the way before anything slow is imported.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from server.cli.connection import open_database, settings
from server.cli.options import BROKER, DATA_DIR, DATA_ROOT, DATABASE, HOST, NO_AUTH

if TYPE_CHECKING:
    from server.settings import Settings


@click.command()
@HOST
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@NO_AUTH
@click.option("--demo", is_flag=True, help="Submit the demo, 29 short runs, if nothing was ever submitted here.")
def up(demo: bool, **options: Any) -> None:
    """Start everything on this machine: database, web server and a worker."""
    from server.cli.up import up as start

    sys.exit(start(settings(**options), demo=demo, say=click.echo))


@click.command()
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

    sys.exit(run(settings(**options), fd))


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Start a worker that trains queued runs (see `stablessm worker --help`)."""
    import os

    os.execv(sys.executable, [sys.executable, "-m", "worker", *arguments])  # noqa: S606


@click.command()
@click.option("--to", "revision", default="head", metavar="REVISION", help="A version of the schema, such as 0003.")
@click.option("--lose", is_flag=True, help="Go back although values without a place in the older schema are lost.")
@DATA_DIR
@DATABASE
def migrate(revision: str, lose: bool, **options: Any) -> None:
    """Bring the database's schema up to date, or to another version."""
    with open_database(settings(**options)) as database:
        database.migrate(revision, lose=lose)
    click.echo("The schema is up to date." if revision == "head" else f"The schema is {revision}.")


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE|DIR")
@click.option("--every", type=click.FloatRange(0.1, 8760), metavar="HOURS", help="Go on, a backup into DIR every so many hours.")
@click.option("--keep", default=14, show_default=True, type=click.IntRange(1), help="With --every: how many to keep.")
@DATA_DIR
@DATABASE
def backup(target: Path, every: float | None, keep: int, **options: Any) -> None:
    """Write everything into one file while it runs: database, checkpoints, logs. No token is in it, only their hashes."""
    from server.backup.create import backup as write

    given = settings(**options)
    if every is not None:
        _back_up_regularly(given, target, every, keep)
        return
    with open_database(given) as database:
        file, manifest = write(database, given.data_dir, target, click.echo)
    click.echo(f"{file}  {file.stat().st_size:,} bytes, SHA-256 of its manifest {manifest.digest}")


def _back_up_regularly(given: Settings, folder: Path, every: float, keep: int) -> None:
    import signal
    import threading

    from server.backup.schedule import back_up_regularly

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with open_database(given) as database:
        say = functools.partial(click.echo, err=True)
        back_up_regularly(database, given.data_dir, folder, every_seconds=every * 3600, keep=keep, say=say, stop=stop)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--verify", "only_verify", is_flag=True, help="Only compare every byte with its SHA-256, and read every row.")
@DATA_DIR
@DATABASE
def restore(file: Path, only_verify: bool, **options: Any) -> None:
    """Bring a backup back into an empty database and data directory, of either engine."""
    if only_verify:
        from server.backup.archive import verify, verify_rows

        found = verify(file)
        verify_rows(file, found)
        rows = sum(table.rows for table in found.tables)
        click.echo(f"{file} is undamaged: schema {found.schema}, {rows:,} rows, manifest {found.digest}")
        return
    from server.backup.restore import restore as bring_back

    given = settings(**options)
    with open_database(given) as database:
        bring_back(database, given.data_dir, file, click.echo)
    click.echo("Restored. Start the server and workers; runs that were in training go on from their last checkpoint.")


@click.command()
@DATA_DIR
@DATABASE
def retention(**options: Any) -> None:
    """Print which runs the server would move to the trash now, by the STABLESSM_RETENTION_* settings given here; moves none."""
    from server.cli.terminal import retention_page, show
    from server.runs.retention import plan

    given = settings(**options)
    with open_database(given) as database:
        database.check_schema()
        with database.read() as session:
            show(retention_page(list(plan(session, given))))


@click.command()
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@click.option("--deep", is_flag=True, help="Read every stored number and checkpoint, however long it takes.")
def doctor(deep: bool, **options: Any) -> None:
    """Check what is needed to train and serve here, and say how to fix what is missing."""
    from server.cli.doctor import examine

    sys.exit(examine(settings(**options), click.echo, deep=deep))
