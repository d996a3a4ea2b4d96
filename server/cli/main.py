"""The program `stablessm`: its commands, and their refusals as one line."""

from __future__ import annotations

from typing import Any

import click

from server.cli import archives, figures, history, runs, service, sweeps, trash
from server.cli.queues import queue
from server.cli.reproduce import reproduce
from server.cli.tokens import token
from server.cli.users import user
from stablessm_core import __version__

SERVICE = (service.up, service.serve, service.worker, service.migrate, service.backup, service.restore)
CHECKS = (service.retention, service.doctor)
RUNS = (runs.submit, runs.runs, runs.show, runs.watch, runs.cancel, runs.resume, runs.fork, runs.compare)
ARCHIVES = (archives.export, archives.import_)
TRASH = (trash.delete, trash.undelete, trash.trash)
SWEEPS = (sweeps.sweep, sweeps.sweeps, sweeps.table)
HISTORY = (figures.figure, history.logs, history.checkpoints)


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
    """Train state-space models and watch every eigenvalue, live: who crosses the boundary, and who dies of it."""


for command in (*SERVICE, *CHECKS, *RUNS, *TRASH, *ARCHIVES, *SWEEPS, *HISTORY, reproduce, token, queue, user):
    main.add_command(command)


def _one_line(error: Exception) -> str | None:
    import httpx

    from server.cli.up import UpError
    from stablessm_core.client import ApiError

    if isinstance(error, ApiError):
        hint = "; STABLESSM_TOKEN or --data-dir says where the token is" if error.status == 401 else ""
        return f"{error}{hint}"
    if isinstance(error, httpx.TransportError):
        return f"no server answers ({error}); start one with `stablessm up`, or set STABLESSM_URL"
    if isinstance(error, UpError | ValueError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    from sqlalchemy.exc import DBAPIError  # only now: it takes long, and other commands get on without

    return f"the database: {str(error.orig).partition(chr(10))[0][:300]}" if isinstance(error, DBAPIError) else None
