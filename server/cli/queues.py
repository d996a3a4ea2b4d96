"""`stablessm queue`: what waits where, and what holds for all runs of a queue."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR

NAME = click.argument("name")


@click.group()
def queue() -> None:
    """Queues: list them, pause one, let it go on, limit how many of its runs run at once."""


@queue.command("list")
@DATA_DIR
def list_queues(data_dir: Path | None) -> None:
    """Every queue that has settings, runs or workers."""
    from server.cli.terminal import queue_table, show

    with connect(data_dir) as client:
        show(queue_table(client.queues(), time.time()))


@queue.command()
@NAME
@DATA_DIR
def pause(name: str, data_dir: Path | None) -> None:
    """Start nothing more from this queue; what runs goes on."""
    _change(name, data_dir, paused=True)


@queue.command()
@NAME
@DATA_DIR
def resume(name: str, data_dir: Path | None) -> None:
    """Let a paused queue go on."""
    _change(name, data_dir, paused=False)


@queue.command()
@NAME
@click.argument("count", metavar="COUNT|none")
@DATA_DIR
def limit(name: str, count: str, data_dir: Path | None) -> None:
    """Let at most COUNT runs of this queue run at once; `none` takes the limit away."""
    if count != "none" and not (count.isascii() and count.isdigit()):
        raise click.BadParameter(f"COUNT is {count[:40]!r}; allowed are whole numbers from 0 on, or none")
    _change(name, data_dir, max_running=None if count == "none" else int(count[:9]))


def _change(name: str, data_dir: Path | None, **changes: Any) -> None:
    from server.cli.terminal import queue_table, show

    with connect(data_dir) as client:
        show(queue_table([client.change_queue(name, **changes)], time.time()))
