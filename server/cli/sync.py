"""The command that sends the files of watched runs to the server."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from server.cli.options import DATA_DIR
from stablessm_core.client import find_server
from stablessm_core.report.sync import sync_files


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PATH...")
@DATA_DIR
def sync(paths: tuple[Path, ...], data_dir: Path | None) -> None:
    """Send the files of runs that `stablessm.watch` recorded while the server was away. The command can be repeated: numbers that
    are stored already are not stored twice. A damaged file is sent up to its first damaged record. A directory stands for all
    files of runs in it."""
    url, token = find_server(data_dir)
    sys.exit(sync_files(list(paths), url, token, click.echo, partial(click.echo, err=True)))
