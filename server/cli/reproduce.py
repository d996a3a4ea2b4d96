"""`stablessm reproduce`: reproduces a measured table of the documentation with ordinary runs of this server."""

from __future__ import annotations

from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.culprits import culprits
from server.cli.options import DATA_DIR
from server.cli.reproduce_paper import add_commands
from server.cli.reproduce_rates import rates
from studies import systems as study
from studies.systems_text import systems_text


@click.group()
def reproduce() -> None:
    """Repeat a table of the documentation, or judge a table or figure of the StableSSM paper. The runs are ordinary runs, which
    the web pages show like all other runs."""


add_commands(reproduce)


@reproduce.command()
@click.option(
    "--quick", is_flag=True, help="Train small models for few steps, which takes minutes on two cores instead of hours."
)
@click.option("--layers", default="", help="Train only these layers, separated by commas.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File to write. Default: standard output.")
@DATA_DIR
def systems(quick: bool, layers: str, output: Path | None, data_dir: Path | None) -> None:
    """Train every layer with its native map and `best`. Show what each layer learns, and the learning rates at which it stays
    finite."""
    size = study.QUICK if quick else study.LONG
    try:
        names = study.parse_layers(layers)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    try:
        with connect(data_dir) as client:
            rows = study.reproduce(client, size, names, lambda line: click.echo(line, err=True))
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; the submitted runs continue, and their sweeps show the results") from None
    text = systems_text(rows, size)
    if output is None:
        click.echo(text)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(str(output), err=True)


reproduce.add_command(culprits)
reproduce.add_command(rates)
