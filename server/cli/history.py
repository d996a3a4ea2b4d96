"""Commands for the log and the checkpoints of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, RUN_ID
from server.cli.terminal import file_size, printable, show, table, time_text
from stablessm_core.client import FINAL, Client

FOLLOW_SECONDS = 0.5
LAST_OUTPUT_SECONDS = 2.0  # time to wait after a run's end, because the worker may still send its last output


@click.command()
@RUN_ID
@click.option("--follow", "-f", is_flag=True, help="Follow the log until the run ends.")
@DATA_DIR
def logs(run_id: int, follow: bool, data_dir: Path | None) -> None:
    """Print the log of a run and the tracebacks of its attempts. Only the beginning and the end of a long log are kept."""
    with connect(data_dir) as client:
        found = client.log(run_id)
        printer = LogPrinter()
        printer.pieces(found["pieces"])
        if follow:
            try:
                found = _follow(client, run_id, found, printer)
            except KeyboardInterrupt:
                click.echo(f"Run {run_id} continues; `stablessm logs {run_id} --follow` shows the log again.", err=True)
                return
        for trace in found["tracebacks"]:
            printer.heading(f"traceback of attempt {trace['attempt']}")
            printer.text(trace["text"].rstrip() + "\n")
        if printer.empty:
            click.echo(f"run {run_id} has printed nothing{' yet' if found['status'] in ('queued', 'running') else ''}", err=True)


@click.command()
@RUN_ID
@click.option("--download", "step", type=click.IntRange(0), metavar="STEP", help="Download the checkpoint of this step.")
@click.option("--output", "-o", type=click.Path(path_type=Path), help="File name. Default: run-RUN-step-STEP.safetensors.")
@click.option("--json", "as_json", is_flag=True)
@DATA_DIR
def checkpoints(run_id: int, step: int | None, output: Path | None, as_json: bool, data_dir: Path | None) -> None:
    """List the checkpoints that a run can resume from, or download one."""
    with connect(data_dir) as client:
        if step is not None:
            path = client.download_checkpoint(run_id, step, output or Path(f"run-{run_id}-step-{step}.safetensors"))
            click.echo(f"{file_size(path)}, SHA-256 as recorded")
            return
        found = client.checkpoints(run_id)
    if as_json:
        click.echo("\n".join(json.dumps(one) for one in found))
        return
    rows = [
        [str(one["step"]), str(one["attempt"]), "" if one["size_bytes"] is None else f"{one['size_bytes']:,}",
         time_text(one["created_at"], seconds=True),
         "here" if one["available"] else f"on {one['host'] or 'another machine'}", one["sha256"]]
        for one in found
    ]  # fmt: skip
    titles = ["step", "attempt", "bytes", "written", "file", "sha256"]
    show(table(rows, titles, numbers=("step", "attempt", "bytes")) if rows else "No checkpoints.")


class LogPrinter:
    """Prints pieces of a log, with a heading wherever an attempt begins or text is missing."""

    def __init__(self) -> None:
        self.empty = True
        self._attempt: int | None = None

    def pieces(self, pieces: list[dict[str, Any]]) -> None:
        for piece in pieces:
            if piece["cut"]:
                self.heading(f"{piece['cut']:,} characters were not kept")
            if piece["attempt"] != self._attempt:
                self._attempt = piece["attempt"]
                self.heading(f"attempt {self._attempt}")
            self.text(piece["text"])

    def heading(self, text: str) -> None:
        click.secho(f"--- {text} ---", dim=True)

    def text(self, text: str) -> None:
        self.empty = False
        click.echo("\n".join(map(printable, text.replace("\t", "    ").split("\n"))), nl=False)


def _follow(client: Client, run_id: int, found: dict[str, Any], printer: LogPrinter) -> dict[str, Any]:
    """Print new text until the run has ended and its last output has arrived; returns the last response."""
    ended_at: float | None = None
    while ended_at is None or time.monotonic() - ended_at < LAST_OUTPUT_SECONDS:
        if ended_at is None and found["status"] in FINAL:
            ended_at = time.monotonic()
        time.sleep(FOLLOW_SECONDS)
        found = client.log(run_id, after=found["next"])
        printer.pieces(found["pieces"])
    return found
