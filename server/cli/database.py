"""Commands that work on the database and the files of this machine, without a server: migrate, backup, restore, retention."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import click

from server.backup.archive import verify, verify_rows
from server.backup.create import backup as write_backup
from server.backup.restore import restore as restore_backup
from server.backup.schedule import back_up_regularly
from server.cli.local_database import open_database
from server.cli.options import DATA_DIR, DATABASE
from server.cli.terminal import file_size, show, size_text, table, time_text
from server.database.connection import Database
from server.keep.retention import plan
from server.settings import Settings, keep_private


@click.command()
@click.option("--to", "revision", default="head", metavar="REVISION", help="A version of the schema, such as 0003.")
@click.option("--lose", is_flag=True, help="Allow a downgrade to lose values that the older schema cannot store.")
@DATA_DIR
@DATABASE
def migrate(revision: str, lose: bool, **options: Any) -> None:
    """Update the database schema, by default to the newest version."""
    settings = Settings.from_environment(**options)
    if _uses_data_dir(settings) and (problem := keep_private(settings.data_dir)) is not None:
        click.echo(f"Warning: {problem}", err=True)
    with open_database(settings) as database:
        before, after = database.migrate(revision, lose=lose)
        place = database.path or "the PostgreSQL database"
    if before == after:
        click.echo(f"The schema is up to date: {after or 'empty'}. Nothing was changed.")
    elif before is None:
        click.echo(f"Created the schema {after} in {place}, which was empty.")
    else:
        click.echo(f"Changed the schema from {before} to {after or 'empty'}.")


def _uses_data_dir(settings: Settings) -> bool:
    database = Database(settings.database_url)
    database.close()
    return settings.data_dir.is_dir() or (database.path is not None and database.path.parent == settings.data_dir)


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="FILE|DIR")
@click.option(
    "--every", type=click.FloatRange(0.1, 8760), metavar="HOURS", help="Keep running; write a backup into DIR every HOURS."
)
@click.option(
    "--keep", default=14, show_default=True, type=click.IntRange(1), help="With --every: the number of backups to keep."
)
@DATA_DIR
@DATABASE
def backup(target: Path, every: float | None, keep: int, **options: Any) -> None:
    """Back up database, checkpoints and logs into one file, while the service runs. Tokens are included only as hashes."""
    settings = Settings.from_environment(**options)
    with open_database(settings) as database:
        if every is None:
            file, manifest = write_backup(database, settings.data_dir, target, click.echo)
            click.echo(f"{file_size(file)}, SHA-256 of its manifest {manifest.digest}")
            return
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        say = partial(click.echo, err=True)
        back_up_regularly(database, settings.data_dir, target, every_seconds=every * 3600, keep=keep, say=say, stop=stop)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--verify",
    "verify_only",
    is_flag=True,
    help="Only check the backup: compare every part with its SHA-256 and read every row. Nothing is restored.",
)
@DATA_DIR
@DATABASE
def restore(file: Path, verify_only: bool, **options: Any) -> None:
    """Restore a backup into an empty database, SQLite or PostgreSQL, and an empty data directory."""
    if verify_only:
        manifest = verify(file)
        verify_rows(file, manifest)
        rows = sum(table.rows for table in manifest.tables)
        click.echo(f"{file} is undamaged: schema {manifest.schema}, {rows:,} rows, manifest {manifest.digest}")
        return
    settings = Settings.from_environment(**options)
    with open_database(settings) as database:
        restore_backup(database, settings.data_dir, file, click.echo)
    click.echo("Restored. Start the server and workers; runs that were training resume from their last checkpoint.")


@click.command()
@DATA_DIR
@DATABASE
def retention(**options: Any) -> None:
    """List the runs that the current STABLESSM_RETENTION_* settings would move to the trash now. Nothing is moved."""
    settings = Settings.from_environment(**options)
    with open_database(settings) as database:
        database.check_schema()
        with database.read() as session:
            leaving = list(plan(session, settings))
    rows = [
        [str(run.run_id), size_text(run.bytes_stored), time_text(run.ended_at), run.name or "", run.reason] for run in leaving
    ]
    if rows:
        show(table(rows, ["run", "size", "ended", "name", "why"], numbers=("run", "size")))
    total = size_text(sum(run.bytes_stored for run in leaving))
    click.echo(f"{len(leaving):,} runs would go to the trash, {total}")
