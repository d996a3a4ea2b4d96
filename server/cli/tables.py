"""`stablessm table`: writes a table of groups of runs for a paper."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, Choice
from server.cli.sweeps import FORMATS
from server.cli.terminal import printable
from stablessm_core.spec.suggestions import did_you_mean


@click.command()
@click.argument("of")
@click.option("--metric", multiple=True, help="Such as eval_accuracy or best_train_loss; can be repeated. Default: train_loss.")
@click.option("--rows", multiple=True, metavar="FIELD", help="Setting of the rows; can be repeated. Default: layers or maps.")
@click.option("--across", metavar="FIELD", help="A setting whose values become columns, such as lr.")
@click.option(
    "--statistic", type=Choice(["median", "mean"]), default="median", show_default=True,
    help="median [quartiles], or mean ± standard deviation.",
)  # fmt: skip
@click.option("--digits", type=click.IntRange(1, 10), default=3, show_default=True, help="Significant digits.")
@click.option("--format", "form", type=Choice(list(FORMATS.values())), help="Default: the ending of the -o file, else markdown.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="File to write. Default: standard output.")
@DATA_DIR
def table(
    of: str, metric: tuple[str, ...], rows: tuple[str, ...], across: str | None, statistic: str, digits: int, form: str | None,
    output: Path | None, data_dir: Path | None,
) -> None:  # fmt: skip
    """Write a table for a paper: a row per map, layer or other setting, with finite / ended runs inside every cell.

    OF is a sweep (sweep:3), runs (7,8,9), or a filter ("tag=paper task=digits").
    """
    form = _format(output, form)
    with connect(data_dir) as client:
        content = client.paper_table(
            **_subject(of), format=form, metric=metric or ("train_loss",), rows=rows or None, across=across, statistic=statistic,
            digits=digits,
        )  # fmt: skip
    if output is not None:
        output.write_bytes(content)
        click.echo(f"{output}  {len(content):,} bytes")
    elif sys.stdout.isatty():
        click.echo("\n".join(map(printable, content.decode().splitlines())))
    else:
        sys.stdout.buffer.write(content)


def _subject(of: str) -> dict[str, Any]:
    if found := re.fullmatch(r"sweep:(\d{1,18})", of):
        return {"sweep": int(found[1])}
    if re.fullmatch(r"\d{1,18}(,\d{1,18})*", of):
        return {"runs": [int(part) for part in of.split(",")]}
    return {"q": of}


def _format(output: Path | None, given: str | None) -> str:
    ending = output.suffix.lower() if output else ""
    if output and not given and ending not in FORMATS:
        guess = did_you_mean(ending, FORMATS)
        raise click.UsageError(f"{output} ends in {ending[:20] or 'nothing'}{guess}; allowed: {', '.join(FORMATS)}, or --format")
    form = given or FORMATS.get(ending) or "markdown"
    if form == "parquet" and output is None:
        raise click.UsageError("Parquet is a binary format; give the file with -o")
    return form
