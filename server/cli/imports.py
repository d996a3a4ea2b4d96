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
from server.importing.counting import Totals
from server.importing.follow import Following
from server.importing.found_run import FoundRun, Unreadable
from server.importing.known import Identities
from server.importing.sending import about, name_loss, send_run
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
@click.option("--follow", is_flag=True, help="Keep importing what programs still write, until Ctrl-C or --until-idle.")
@click.option(
    "--until-idle", type=click.FloatRange(0), metavar="SECONDS", help="With --follow: end when nothing is new for so long."
)
@DATA_DIR
def import_(
    path: Path, project: str | None, loss: str | None, step: str | None, tags: tuple[str, ...], follow: bool,
    until_idle: float | None, data_dir: Path | None,
) -> None:  # fmt: skip
    """Import the runs in a file, or in a folder and the folders in it: event files of TensorBoard, files of W&B, SQLite databases
    and run folders of MLflow, SQLite databases of trackio, trainer_state.json, CSV, JSON lines and Parquet. The content decides,
    not the name. The command can be repeated: a run that has grown gets its new numbers, and nothing is stored twice.

    An archive of `stablessm export --archive` is imported with everything in it, under new numbers. That needs a token with the
    scope admin."""
    if until_idle is not None and not follow:
        raise click.UsageError("--until-idle needs --follow")
    if path.is_file() and _is_archive(path):
        if project or loss or step or tags or follow:
            raise click.UsageError("an archive of runs takes no --project, --loss, --step, --tag or --follow")
        _import_archive(path, data_dir)
        return
    if project is None:
        raise click.UsageError("--project NAME is needed: the project of the imported runs")
    url, token = find_server(data_dir)
    importing = _Importing(project, loss, list(tags), Server(url, token, SECONDS))
    try:
        if follow:
            _follow(importing, path, step, until_idle)
        else:
            importing.read(path, step)
    except KeyboardInterrupt:
        importing.tell("interrupted; the same command goes on from here")
        sys.exit(130)
    for sentence in importing.totals.sentences():
        importing.tell(printable(sentence))
    sys.exit(1 if importing.totals.refused or not importing.totals.runs else 0)


def _follow(importing: _Importing, path: Path, step: str | None, until_idle: float | None) -> None:
    following = Following(
        importing.server, importing.project, importing.loss, importing.tags, importing.say, importing.refuse,
        importing.totals,
    )  # fmt: skip
    try:
        following.follow(path, step, until_idle)
    except Refused as error:
        raise importing.refusal(error) from None
    except OSError as error:
        raise importing.no_answer(error) from None


class _Importing:
    """Sends the runs of a path one by one, and counts them."""

    def __init__(self, project: str, loss: str | None, tags: list[str], server: Server) -> None:
        self.project, self.loss, self.tags, self.server = project, loss, tags, server
        self._identities = Identities(project)
        self.totals = Totals()

    def read(self, path: Path, step: str | None) -> None:
        """Import everything in the path. Ends at the first sign that the server stores nothing."""
        with _progress() as progress:
            sources = find_sources(path, step, self.refuse, self.totals.passed_over.append)
            reading = progress.add_task("reading", total=sum(source.size for source in sources) or 1)
            sending = progress.add_task("sending", total=None, visible=False)
            for source in sources:
                place = source.what.relative_to(path).as_posix() if path.is_dir() else source.what.name
                try:
                    for number, run in enumerate(source.read(_in_large_steps(lambda size: progress.advance(reading, size)))):
                        self._import(run, source.what, f"{place}\0{number}", progress, sending)
                    self.totals.read += len(source.files)
                except Unreadable as error:
                    self.refuse(str(error))

    def _import(self, run: FoundRun, where: Path, place: str, progress: Progress, sending: TaskID) -> None:
        title = f"{where}: {run.tool} run {printable(run.name)!r}"
        try:
            loss = name_loss(run, self.loss)
            run.count_losses()
            points = sum(len(steps) for steps, _ in run.series().values())
            progress.reset(sending, total=max(1, points), visible=True)
            known = self._identities.settle(self.server, run, place)
            sent = send_run(self.server, run, self.project, self.tags, lambda count: progress.advance(sending, count))
        except Unreadable as error:
            self.refuse(f"{title}: {error}")
            return
        except Refused as error:
            if error.status in (401, 404):  # no run will be stored
                raise self.refusal(error) from None
            self.refuse(f"{title}: the server refuses it: {error}")
            return
        except OSError as error:
            raise self.no_answer(error) from None
        more = "" if known is None else " (known; only new numbers are added)"
        click.echo(f"{title}: {points:,} points in {len(run.names):,} series{more}: {sent.url}")
        self.totals.add(run, points)
        for sentence in about(run, loss):
            self.tell(f"  {printable(sentence)}")
        if sent.refused:
            self.refuse(f"  the server can never store some of the numbers: {sent.refused}")

    def tell(self, sentence: str) -> None:
        """Print a sentence to stderr."""
        click.echo(sentence, err=True)

    def say(self, sentence: str) -> None:
        """Print a sentence to stdout."""
        click.echo(printable(sentence))

    def refuse(self, sentence: str) -> None:
        """Print and count that something is not imported."""
        self.totals.refused += 1
        self.tell(printable(sentence))

    def refusal(self, error: Refused) -> click.ClickException:
        """The sentence about a server that stores nothing."""
        return click.ClickException(f"the server at {self.server.url} refuses {_why(error)}")

    def no_answer(self, error: OSError) -> click.ClickException:
        """The sentence about a server that is away."""
        why = error.strerror or str(error)
        return click.ClickException(f"no server answers at {self.server.url} ({why}); the same command goes on later")


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
