"""The command that exports series and runs to files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from server.cli.connection import connect
from server.cli.file_names import file_name
from server.cli.options import DATA_DIR, Choice
from server.cli.terminal import file_size


@click.command()
@click.argument("what", nargs=-1, metavar="[RUN]... | RUN [SERIES]...")
@click.option("--archive", type=click.Path(path_type=Path), help="Write whole runs to one file, which another server can import.")
@click.option("--sweep", type=click.IntRange(1), help="With --archive: the runs of this sweep.")
@click.option("--q", help="With --archive: the runs that match this filter.")
@click.option("--format", "form", type=Choice(["csv", "arrow", "json"]), default="csv", show_default=True)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), help="Folder for the series. - writes one series to standard output."
)
@DATA_DIR
def export(
    what: tuple[str, ...], archive: Path | None, sweep: int | None, q: str | None, form: str, output: Path | None,
    data_dir: Path | None,
) -> None:  # fmt: skip
    """Export every recorded step of a run's series to files, or, with --archive, whole runs to one file."""
    if archive is None:
        if sweep is not None or q is not None:
            raise click.UsageError("--sweep and --q need --archive FILE")
        if not what:
            raise click.UsageError("give the number of a run, or --archive FILE")
        _export_series(_run_id(what[0]), what[1:], form, output, data_dir)
        return
    with connect(data_dir) as client:
        client.export_archive(archive, [_run_id(one) for one in what] or None, sweep=sweep, q=q)
    click.echo(file_size(archive))


def _export_series(run_id: int, names: tuple[str, ...], form: str, output: Path | None, data_dir: Path | None) -> None:
    with connect(data_dir) as client:
        chosen = names or tuple(s["name"] for s in client.catalogue(run_id) if s["points"])
        if output == Path("-"):
            if len(chosen) != 1:
                raise click.ClickException(f"standard output takes one series; {len(chosen)} are selected")
            sys.stdout.buffer.write(client.download(run_id, chosen[0], form))
            return
        folder = output or Path(f"run-{run_id}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(client.run(run_id), indent=2) + "\n")
        files = {f"{file_name(name)}.{form}": name for name in dict.fromkeys(chosen)}
        (folder / "series.json").write_text(json.dumps(files, indent=2) + "\n")
        for file, name in files.items():
            (folder / file).write_bytes(client.download(run_id, name, form))
            click.echo(file_size(folder / file))


def _run_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text)):
        raise click.UsageError(f"{text[:40]!r} is not the number of a run")
    return int(text)
