"""Commands that repeat a measured table of the documentation, through the service and with ordinary runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR

if TYPE_CHECKING:
    from stablessm_core.client import Client

POLL_SECONDS = 2.0


@click.group()
def reproduce() -> None:
    """Repeat a table of the documentation: its runs are ordinary ones, to be looked at like any other."""


@reproduce.command()
@click.option("--quick", is_flag=True, help="Small models and few steps: minutes on two cores. Without it: hours.")
@click.option("--layers", default="", help="Only these, separated by commas.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File. Default: standard output.")
@DATA_DIR
def systems(quick: bool, layers: str, output: Path | None, data_dir: Path | None) -> None:
    """Every state-space layer with its native map and with best: what it learns, and what keeps it finite."""
    from server.cli.systems import LONG, QUICK, read, sentences, submit, table
    from stablessm_core.layers.registry import LAYERS

    size = QUICK if quick else LONG
    chosen = [name.strip() for name in layers.split(",") if name.strip()]
    for name in chosen:
        if name not in LAYERS:
            raise click.ClickException(f"layers names {name[:80]!r}; allowed are {', '.join(LAYERS)}")
    with connect(data_dir) as client:
        began = time.monotonic()
        sweeps = submit(client, size, chosen)
        click.echo(f"sweeps {', '.join(map(str, sweeps))} at {client.url}/sweeps", err=True)
        try:
            _wait(client, sweeps)
        except KeyboardInterrupt:
            raise click.ClickException("the runs go on; their sweeps show what they have come to") from None
        rows = read(client, size, sweeps)
    text = "\n".join([*table(rows, size), "", *sentences(rows, size), ""])
    if output is None:
        click.echo(text)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(str(output), err=True)
    click.echo(
        f"{sum(total for row in rows for _, total in row.rates.values())} of the runs over learning rates; "
        f"{time.monotonic() - began:.0f} s in all",
        err=True,
    )


def _wait(client: Client, sweeps: list[int]) -> None:
    """Until every run has ended, with a line of progress now and then."""
    said = 0.0
    while True:
        states = [client.sweep(sweep) for sweep in sweeps]
        total = sum(one["total"] for one in states)
        waiting = sum(one["statuses"].get(status, 0) for one in states for status in ("queued", "running"))
        if time.monotonic() - said > 15 or not waiting:
            said = time.monotonic()
            click.echo(f"{total - waiting:,} of {total:,} runs have ended", err=True)
        if not waiting:
            return
        time.sleep(POLL_SECONDS)
