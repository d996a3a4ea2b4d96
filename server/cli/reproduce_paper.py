"""`stablessm reproduce table2` and its neighbours: judge the claims of the StableSSM paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR, Choice
from stablessm_core.client import Client
from studies.paper.catalogue import COMPUTED, NAMES, TRAINED, checked_preset, design
from studies.paper.designs import PRESETS
from studies.paper.groups import read_tags
from studies.paper.outcomes import collect
from studies.paper.registry import Registry, load, report_name
from studies.paper.report import trained_report
from studies.paper.submission import start, take_up, wait

SUMMARIES = {
    "table2": "MNIST pixel by pixel at seven learning rates.",
    "table3": "The same on a sample of 4,000 images, which is not CIFAR-10.",
    "table5": "Gradient norm functions of the maps, computed at once.",
    "table7": "Associative recall.",
    "fig1": "Errors of perturbed models, computed in minutes without runs.",
    "fig2": "Output and gradient near the boundary, computed at once.",
    "fig3": "Gradient over weight during training.",
    "fig4": "Language models at three learning rates.",
    "fig6": "Gradient over weight near the boundary, computed at once.",
}


class Sweeps:
    """The sweeps, runs and autopsies of a server (`studies.paper.outcomes.Source`)."""

    def __init__(self, client: Client, group: str) -> None:
        self._client, self._group = client, group

    def sweeps(self) -> list[dict[str, Any]]:
        return list(self._client.sweeps(self._group))

    def runs(self, sweep_id: int) -> list[Any]:
        return list(self._client.sweep(sweep_id)["runs"])

    def autopsy(self, run_id: int) -> dict[str, Any]:
        return self._client.autopsy(run_id)


def add_commands(group: click.Group) -> None:
    """Add one command for each study of the paper, and `all`."""
    for name in NAMES:
        group.add_command(_command(name))
    group.add_command(_all())


def _command(name: str) -> click.Command:
    presets = [preset for study, preset in TRAINED if study == name and preset]
    runs = any(study == name for study, _ in TRAINED)

    def callback(
        output: tuple[Path, ...], quick: bool = False, seeds: int | None = None, preset: str | None = None,
        resume: int | None = None, data_dir: Path | None = None,
    ) -> None:  # fmt: skip
        registry = registered()
        check_endings(output)
        if runs:
            report = _trained(registry, name, preset, "quick" if quick else "full", seeds, resume, data_dir)
        else:
            report = _computed(registry, name, quick, seeds)
        _show(report, registry, output)

    options: list[Callable[[Any], Any]] = [output_option()]
    if runs or name == "fig1":
        options += [quick_option(), seeds_option()]
    if runs:
        options += [resume_option(), DATA_DIR]
    if presets:
        options.append(_preset())
    for option in options:
        callback = option(callback)
    callback.__doc__ = SUMMARIES[name]
    return click.command(name, help=f"{SUMMARIES[name]} Judge the paper's claims about it.", short_help=SUMMARIES[name])(callback)


def _all() -> click.Command:
    @click.command("all", short_help="Every study of the paper, one after the other.")
    @quick_option()
    @seeds_option()
    @click.option(
        "--output", "-o", type=click.Path(path_type=Path, file_okay=False), help="Folder for the reports, as JSON and Markdown."
    )
    @click.option("--resume", is_flag=True, help="Continue the newest reproduction of each study of this size on this server.")
    @DATA_DIR
    def everything(quick: bool, seeds: int | None, output: Path | None, resume: bool, data_dir: Path | None) -> None:
        """Every study of the paper, one after the other: table2 with both presets, all other tables and figures."""
        registry = registered()
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
        for name, preset in [*((study, None) for study in COMPUTED), *TRAINED]:
            click.echo(f"== {report_name(name, preset)}", err=True)
            if (name, preset) in TRAINED:
                size = "quick" if quick else "full"
                begun = newest(name, preset, size, data_dir) if resume else None
                report = _trained(registry, name, preset, size, seeds, begun, data_dir)
            else:
                report = _computed(registry, name, quick, seeds)
            files = () if output is None else tuple(output / f"{report_name(name, preset)}.{ending}" for ending in ("json", "md"))
            _show(report, registry, files)

    return everything


def newest(name: str, preset: str | None, size: str, data_dir: Path | None) -> int | None:
    """A sweep of the newest reproduction of this study and size; None if there is none, or if its design has changed."""
    planned = design(name, preset, size)
    with connect(data_dir) as client:
        for sweep in client.sweeps(f"{name} "):
            read = read_tags(sweep["base"])
            if read and (read[0].study, read[0].preset, read[0].size) == (name, preset, size):
                return int(sweep["id"]) if read[0].design == planned.signature else None
    return None


def _trained(
    registry: Registry, name: str, preset: str | None, size: str, seeds: int | None, resume: int | None, data_dir: Path | None
) -> dict[str, Any]:
    with connect(data_dir) as client:
        try:
            if resume is None:
                planned = design(name, checked_preset(name, preset), size, seeds)
                group, ids = start(client, planned, registry)
            else:
                planned, group, ids = take_up(client, resume)
                if group.study != name:
                    raise ValueError(f"sweep {resume} belongs to {group.study}; call `stablessm reproduce {group.study}`")
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        say(
            f"{planned.title}: {planned.runs:,} runs in sweeps {', '.join(map(str, ids))} at {client.url}/sweeps; about "
            f"{planned.minutes:g} min on two idle cores"
        )
        try:
            wait(client, ids, say)
            return trained_report(collect(Sweeps(client, group.group), planned, group), registry)
        except KeyboardInterrupt:
            raise click.ClickException(
                f"interrupted; the runs continue, and `stablessm reproduce {name} --resume {ids[0]}` waits for them again"
            ) from None


def _computed(registry: Registry, name: str, quick: bool, seeds: int | None) -> dict[str, Any]:
    from studies.paper.computed import AT_ONCE, computed

    if name in AT_ONCE:
        return computed(name, registry)
    from studies.paper.perturbed import perturbed

    return perturbed(registry, quick=quick, seeds=seeds, say=say)


def _show(report: dict[str, Any], registry: Registry, output: tuple[Path, ...]) -> None:
    for one in report["verdicts"]:
        click.echo(f"{one['claim']}: {one['verdict']}. {one['why']}")
    write_reports(report, registry, output)


def write_reports(report: dict[str, Any], registry: Registry, output: tuple[Path, ...]) -> None:
    """Write the report to each of the files, and name every written file."""
    if not output:
        return
    from server.http.paper_files import write_report  # here, because it imports matplotlib

    for path in output:
        for file in write_report(report, registry, path):
            click.echo(str(file), err=True)


def say(line: str) -> None:
    """Show a line of progress."""
    click.echo(line, err=True)


def registered() -> Registry:
    """The registered claims of this installation."""
    try:
        return load()
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def check_endings(output: tuple[Path, ...]) -> None:
    """Refuse a file whose ending is not that of a report."""
    for path in output:
        if path.suffix not in (".json", ".html", ".md", ".tex"):
            raise click.ClickException(f"--output is {path.name!r}; allowed endings: .json, .html, .md, .tex")


def output_option() -> Callable[[Any], Any]:
    help_ = "Report to write: .json, .html, .md or .tex. Can be repeated."
    return click.option("--output", "-o", multiple=True, type=click.Path(path_type=Path, dir_okay=False), help=help_)


def quick_option() -> Callable[[Any], Any]:
    return click.option("--quick", is_flag=True, help="Few small runs, about two minutes on two cores; judges nothing.")


def seeds_option() -> Callable[[Any], Any]:
    return click.option("--seeds", type=click.IntRange(1, 100), help="Seeds. Default: 12, as registered; fewer judge nothing.")


def resume_option() -> Callable[[Any], Any]:
    return click.option("--resume", type=click.IntRange(1), metavar="SWEEP", help="Continue the reproduction of this sweep.")


def _preset() -> Callable[[Any], Any]:
    help_ = "paper: the layer of the paper's text (default). released: the layer of the authors' code."
    return click.option("--preset", type=Choice(PRESETS), help=help_)
