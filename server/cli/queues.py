"""`stablessm queue`: list queues, pause and resume them, and limit their running runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from server.cli.connection import connect
from server.cli.options import DATA_DIR
from server.cli.terminal import duration_text, show, table

NAME = click.argument("name")


@click.group()
def queue() -> None:
    """List queues, pause and resume them, and limit how many of their runs train at once."""


@queue.command("list")
@DATA_DIR
def list_queues(data_dir: Path | None) -> None:
    """List every queue that has settings, runs or workers."""
    with connect(data_dir) as client:
        _show(client.queues())


@queue.command()
@NAME
@DATA_DIR
def pause(name: str, data_dir: Path | None) -> None:
    """Pause a queue: workers start none of its runs; running runs continue."""
    _change(name, data_dir, paused=True)


@queue.command()
@NAME
@DATA_DIR
def resume(name: str, data_dir: Path | None) -> None:
    """Resume a paused queue."""
    _change(name, data_dir, paused=False)


@queue.command()
@NAME
@click.argument("count", metavar="COUNT|none")
@DATA_DIR
def limit(name: str, count: str, data_dir: Path | None) -> None:
    """Allow at most COUNT runs of this queue at once; `none` removes the limit."""
    if count != "none" and not (count.isascii() and count.isdigit()):
        raise click.BadParameter(f"COUNT is {count[:40]!r}; allowed: a whole number of at least 0, or none")
    _change(name, data_dir, max_running=None if count == "none" else int(count[:9]))


def _change(name: str, data_dir: Path | None, **changes: Any) -> None:
    with connect(data_dir) as client:
        _show([client.change_queue(name, **changes)])


def _show(queues: list[dict[str, Any]]) -> None:
    now = time.time()
    rows = [
        [
            queue["name"] + (" (paused)" if queue["paused"] else ""),
            str(queue["queued"]),
            str(queue["running"]),
            "none" if queue["max_running"] is None else str(queue["max_running"]),
            "" if queue["oldest_at"] is None else duration_text(now - queue["oldest_at"]),
            str(queue["workers"]),
        ]
        for queue in queues
    ]
    titles = ["queue", "waiting", "running", "limit", "longest wait", "workers"]
    show(table(rows, titles, numbers=titles[1:]))
