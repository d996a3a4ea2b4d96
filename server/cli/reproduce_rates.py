"""`stablessm reproduce rates`: each seed's largest stable learning rate, by bisection."""

from __future__ import annotations

from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.reproduce_paper import (
    Sweeps,
    check_endings,
    output_option,
    quick_option,
    registered,
    resume_option,
    say,
    seeds_option,
    write_reports,
)
from studies.paper.rates import rates_design
from studies.paper.rates_report import rates_report
from studies.paper.rates_rounds import begin, take_up_rates, train_rounds


@click.command(short_help="Each seed's largest stable learning rate, by bisection.")
@quick_option()
@seeds_option()
@resume_option()
@output_option()
@DATA_DIR
def rates(quick: bool, seeds: int | None, resume: int | None, output: tuple[Path, ...], data_dir: Path | None) -> None:
    """Each seed's largest stable learning rate with every map of table 2, by leaps and bisection. Exploratory: no claim of the
    paper is judged."""
    registry = registered()
    check_endings(output)
    with connect(data_dir) as client:
        try:
            design = rates_design("quick" if quick else "full", seeds)
            design, group = (design, begin(design, registry)) if resume is None else take_up_rates(client, resume)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        try:
            found = train_rounds(client, Sweeps(client, group.group), design, group, say)
        except KeyboardInterrupt:
            message = "interrupted; the submitted runs continue, and `stablessm reproduce rates --resume SWEEP` goes on from them"
            raise click.ClickException(message) from None
    report = rates_report(found, registry)
    for sentence in (*report["problems"], *report["findings"]):
        click.echo(sentence)
    write_reports(report, registry, output)
