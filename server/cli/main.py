"""The program `stablessm` and the list of its commands. The module of a command is imported only when the command is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

import click

from stablessm_core import __version__

COMMANDS = {  # name: (module and attribute in server.cli, summary in `stablessm --help`)
    "up": ("up:up", "Start database, web server and worker on this machine."),
    "serve": ("serve:serve", "Start the web server only."),
    "worker": ("main:worker", "Start a worker, which trains queued runs."),
    "migrate": ("database:migrate", "Update the database schema."),
    "backup": ("database:backup", "Back up database, checkpoints and logs into one file."),
    "restore": ("database:restore", "Restore a backup into an empty installation."),
    "retention": ("database:retention", "List the runs that retention would move to the trash now."),
    "doctor": ("doctor:doctor", "Check this installation and report how to fix each problem."),
    "submit": ("runs:submit", "Submit a run."),
    "runs": ("runs:runs", "List runs."),
    "show": ("runs:show", "Show one run."),
    "watch": ("runs:watch", "Follow a run live."),
    "cancel": ("runs:cancel", "Cancel a queued or running run."),
    "autopsy": ("autopsy:autopsy", "Show what an ended run's fatal step computed."),
    "resume": ("runs:resume", "Resume an ended run from its last checkpoint."),
    "fork": ("runs:fork", "Start a changed copy of a run from one of its checkpoints."),
    "compare": ("runs:compare", "Compare runs."),
    "rename": ("annotate:rename", "Rename a run."),
    "tag": ("annotate:tag", "Add tags to a run or remove them."),
    "note": ("annotate:note", "Set or print the notes of a run."),
    "logs": ("history:logs", "Print the log of a run."),
    "checkpoints": ("history:checkpoints", "List or download the checkpoints of a run."),
    "figure": ("figures:figure", "Save a chart as PDF, SVG, PNG or HTML."),
    "export": ("archives:export", "Export series or whole runs to files."),
    "import": ("imports:import_", "Import runs from an archive, TensorBoard, W&B, MLflow, trackio, CSV or Parquet."),
    "sync": ("sync:sync", "Send runs that `stablessm.watch` recorded in files."),
    "delete": ("trash:delete", "Move ended runs to the trash."),
    "undelete": ("trash:undelete", "Restore runs from the trash."),
    "trash": ("trash:trash", "List the runs in the trash."),
    "sweep": ("sweeps:sweep", "Submit a sweep."),
    "sweeps": ("sweeps:sweeps", "List sweeps."),
    "sweep-table": ("sweeps:sweep_table", "Write a table of the runs of a sweep."),
    "table": ("tables:table", "Write a table of groups of runs for a paper."),
    "reproduce": ("reproduce:reproduce", "Repeat an experiment of the documentation."),
    "token": ("tokens:token", "Create, list and revoke tokens."),
    "queue": ("queues:queue", "List, pause and limit queues."),
    "completion": ("completion:completion", "Install tab completion for your shell."),
    "user": ("users:user", "List users, set quotas and permissions."),
}


class LazyCommand(click.Command):
    """A placeholder for a command in lists and completions. It imports the command when the command is called."""

    def __init__(self, name: str, location: str, summary: str) -> None:
        super().__init__(name, short_help=summary)
        self._location = location

    def load(self) -> click.Command:
        """Import and return the command."""
        module, _, attribute = self._location.partition(":")
        command: click.Command = getattr(import_module(f"server.cli.{module}"), attribute)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        return self.load().make_context(info_name, args, parent, **extra)


class Program(click.Group):
    """A command group that reports expected errors as one line on stderr, with exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            text = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
            raise click.ClickException(text) from None


@click.group(
    cls=Program,
    commands=[LazyCommand(name, *entry) for name, entry in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="stablessm")
def main() -> None:
    """Train state-space models and see, live, which eigenvalue threatens the training and why."""


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Start a worker that trains queued runs (see `stablessm worker --help`)."""
    os.execv(sys.executable, [sys.executable, "-m", "worker", *arguments])  # noqa: S606
