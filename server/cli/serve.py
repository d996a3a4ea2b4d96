"""`stablessm serve`: starts the web server only."""

from __future__ import annotations

import sys
from typing import Any

import click

from server.cli.local_database import open_database
from server.cli.options import BROKER, DATA_DIR, DATA_ROOT, DATABASE, HOST, NO_AUTH
from server.http.serving import serve as run_server
from server.lifecycle.demo import submit_demo
from server.parent_death import die_with_parent, name_process
from server.settings import Settings, keep_private


@click.command()
@HOST
@click.option("--port", default=8000, show_default=True, type=click.IntRange(1, 65535))
@DATA_DIR
@DATABASE
@BROKER
@DATA_ROOT
@NO_AUTH
@click.option("--fd", type=int, hidden=True)  # `stablessm up` uses the four hidden options
@click.option("--parent-pid", type=int, hidden=True)
@click.option("--migrate", is_flag=True, hidden=True)
@click.option("--demo", is_flag=True, hidden=True)
def serve(fd: int | None, parent_pid: int | None, migrate: bool, demo: bool, no_auth: bool, **options: Any) -> None:
    """Start the web server only. It creates a new SQLite database; run `stablessm migrate` first for other databases."""
    if parent_pid is not None:
        die_with_parent(parent_pid)
    settings = Settings.from_environment(auth=not no_auth, **options)
    name_process("stablessm serve")
    if (problem := keep_private(settings.data_dir)) is not None:
        click.echo(f"Warning: {problem}", err=True)
    if migrate or _is_new(settings):
        _migrate(settings, demo=demo)
    sys.exit(run_server(settings, fd))


def _is_new(settings: Settings) -> bool:
    """True if the database is a SQLite file that does not exist yet."""
    with open_database(settings) as database:
        return database.path is not None and not database.path.exists()


def _migrate(settings: Settings, *, demo: bool) -> None:
    # migrate in this process, which has already imported the modules that a migration needs; importing them in `up` would take
    # as long as the migration itself
    with open_database(settings) as database:
        database.migrate()
        if demo and (count := submit_demo(database)):
            click.echo(f"Submitted {count} demo runs.")
