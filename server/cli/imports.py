"""The command that imports runs from archives of StableSSM and from the files of other tools."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.terminal import printable
from server.importing.found_run import FoundRun, Unreadable
from server.importing.sending import name_loss, send_run
from server.importing.sources import find_sources
from stablessm_core.client import find_server
from stablessm_core.report.link import Refused, Server
from stablessm_core.telemetry.series import TRAIN_LOSS

LARGE = 1 << 16  # bytes
SECONDS = 60.0  # that the server may take for a post of many numbers


@click.command(name="import")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--project", "-p", help="Project of the runs. Files of other tools need it.")
@click.option("--loss", metavar="SERIES", help=f"Series of the training loss, stored as {TRAIN_LOSS}. Default: an obvious name.")
@click.option("--step", metavar="COLUMN", help="Column of steps in CSV and Parquet. Default: an obvious name, else the row.")
@click.option("--tag", "tags", multiple=True, help="Tag for every run; can be repeated.")
@DATA_DIR
def import_(
    path: Path, project: str | None, loss: str | None, step: str | None, tags: tuple[str, ...], data_dir: Path | None
) -> None:
    """Import the runs in a file, or in a folder and the folders in it: event files of TensorBoard, offline files of W&B, SQLite
    databases and run folders of MLflow, SQLite databases of trackio, CSV and Parquet. The content decides, not the name. The
    command can be repeated: a run that has grown gets its new numbers, and nothing is stored twice.

    An archive of `stablessm export --archive` is imported with everything in it, under new numbers. That needs a token with the
    scope admin."""
    if path.is_file() and _is_archive(path):
        if project or loss or step or tags:
            raise click.UsageError("an archive of runs takes no --project, --loss, --step or --tag")
        _import_archive(path, data_dir)
        return
    if project is None:
        raise click.UsageError("--project NAME is needed: the project of the imported runs")
    importing = _Importing(project, loss, list(tags), data_dir)
    try:
        importing.read(path, step)
    except KeyboardInterrupt:
        importing.tell("interrupted; the same command goes on from here")
        sys.exit(130)
    sys.exit(1 if importing.failed or not importing.sent else 0)


class _Importing:
    """Sends the runs of a path one by one. sent, failed: how many."""

    def __init__(self, project: str, loss: str | None, tags: list[str], data_dir: Path | None) -> None:
        self._project, self._loss, self._tags = project, loss, tags
        self._url, token = find_server(data_dir)
        self._server = Server(self._url, token, SECONDS)
        self.sent = self.failed = 0

    def read(self, path: Path, step: str | None) -> None:
        """Import everything in the path. Ends at the first sign that the server stores nothing."""
        with _progress() as progress:
            sources = find_sources(path, step, self._fail)
            reading = progress.add_task("reading", total=sum(source.size for source in sources) or 1)
            sending = progress.add_task("sending", total=None, visible=False)
            for source in sources:
                try:
                    for run in source.read(_in_large_steps(lambda size: progress.advance(reading, size))):
                        self._import(run, source.what, progress, sending)
                except Unreadable as error:
                    self._fail(str(error))

    def _import(self, run: FoundRun, where: Path, progress: Progress, sending: TaskID) -> None:
        title = f"{where}: {run.tool} run {printable(run.name)!r}"
        try:
            loss = name_loss(run, self._loss)
        except Unreadable as error:
            self._fail(f"{title}: {error}")
            return
        points = sum(len(steps) for steps, _ in run.series().values())
        progress.reset(sending, total=max(1, points), visible=True)
        try:
            sent = send_run(self._server, run, self._project, self._tags, lambda count: progress.advance(sending, count))
        except Refused as error:
            if error.status in (401, 404):  # no run will be stored
                raise click.ClickException(f"the server at {self._url} refuses {_why(error)}") from None
            self._fail(f"{title}: the server refuses it: {error}")
            return
        except OSError as error:
            why = error.strerror or str(error)
            raise click.ClickException(f"no server answers at {self._url} ({why}); the same command goes on later") from None
        known = " (known; only new numbers are added)" if sent.known else ""
        click.echo(f"{title}: {points:,} points in {len(run.names):,} series{known}: {sent.url}")
        self.sent += 1
        if loss is None and run.names:
            self.tell(f"  no series looks like the training loss; --loss SERIES names it: {printable(', '.join(run.names[:10]))}")
        elif loss not in (None, TRAIN_LOSS):
            self.tell(f"  {printable(str(loss))} is stored as {TRAIN_LOSS}")
        for kind, count in run.left_out.items():
            self.tell(f"  left out: {printable(kind)} ({count:,})")
        for remark in run.remarks:
            self.tell(f"  {printable(remark)}")
        if sent.refused:
            self._fail(f"  the server can never store some of the numbers: {sent.refused}")

    def tell(self, sentence: str) -> None:
        """Print a sentence to stderr."""
        click.echo(sentence, err=True)

    def _fail(self, sentence: str) -> None:
        self.failed += 1
        self.tell(printable(sentence))


def _why(error: Refused) -> str:
    if error.status == 401:
        return "the token: set STABLESSM_TOKEN, or --data-dir to the folder of `stablessm up`"
    return f"to store reported runs ({error}): is it a StableSSM server?"


def _in_large_steps(advance: Callable[[int], None]) -> Callable[[int], None]:
    """Advance a bar only every LARGE bytes, because a bar is slower than the reading of a short record."""
    waiting = 0

    def add(size: int) -> None:
        nonlocal waiting
        waiting += size
        if waiting >= LARGE:
            advance(waiting)
            waiting = 0

    return add


@contextmanager
def _progress() -> Iterator[Progress]:
    """Shows a bar on a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(512)
    return head[257:262] == b"ustar" and head.startswith((b"runs/", b"manifest.json"))


def _import_archive(file: Path, data_dir: Path | None) -> None:
    with connect(data_dir) as client:
        answer = client.import_archive(file)
        for run in answer["runs"]:
            click.echo(f"run {run['was']} of {answer['source']} is run {run['id']}: {client.url}{run['url']}")
