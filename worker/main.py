"""`python -m worker`: reads the options and starts the training processes, then the worker itself (worker.service)."""

from __future__ import annotations

import re
from pathlib import Path

import click

from server.logs import start_logging
from server.open_files import TooFewFiles, allow_open_files, needed_by_worker
from server.parent_death import die_with_parent
from server.settings import LEASES, Settings, make_private
from worker import NO_TORCH, is_torch_installed
from worker.gpus import Booking, GpuError, default_folder, visible_gpus
from worker.process_pool import ProcessPool


def _queue_names(_context: click.Context, _parameter: click.Parameter, given: str | None) -> list[str] | None:
    if given is None:
        return None
    from server.lifecycle.queues import MAX_NAME, QUEUE_PATTERN  # imported late, because it imports SQLAlchemy (see `main`)

    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("names no queue; give names separated by commas, or omit it for every queue")
    for name in names:
        if len(name) > MAX_NAME or not re.match(QUEUE_PATTERN, name):
            raise click.BadParameter(f"{name[:80]!r}; allowed: letters, digits, . _ -, at most {MAX_NAME}")
    return names


@click.command()
@click.option("--database-url", help="Default: STABLESSM_DATABASE_URL, else SQLite in the data directory.")
@click.option(
    "--broker-url", help="Redis whose messages wake the worker. Default: STABLESSM_BROKER_URL, else it polls the database."
)
@click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder for checkpoints, logs and spool. Default: STABLESSM_DATA_DIR."
)
@click.option("--data-root", type=click.Path(path_type=Path), help="Folder of the data sets. Default: STABLESSM_DATA.")
@click.option(
    "--slots",
    envvar="STABLESSM_SLOTS",
    type=click.IntRange(1, 64),
    help="Number of runs trained at a time. Default: STABLESSM_SLOTS, else one per GPU that is free at the start, else 1.",
)
@click.option(
    "--queues",
    envvar="STABLESSM_QUEUES",
    callback=_queue_names,
    metavar="NAME,...",
    help="Queues to take runs from. Default: STABLESSM_QUEUES, else every queue.",
)
@click.option(
    "--lease-seconds",
    type=click.FloatRange(*LEASES),
    help="A run without a heartbeat for this many seconds goes to another worker. Use the same value on every worker and server. "
    "Default: STABLESSM_LEASE_SECONDS, else 25.",
)
@click.option(
    "--spool-mib", type=click.IntRange(1), default=2048, help="Disk space per run while the database is away. Default: 2048."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port for Prometheus metrics of this worker; 0 takes a free one. Default: none.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Address of the metrics. They need no token.")
@click.option("--parent-pid", type=int, help="Stop when the process with this id, which started the worker, has ended.")
def main(
    database_url: str | None,
    broker_url: str | None,
    data_dir: Path | None,
    data_root: Path | None,
    slots: int | None,
    queues: list[str] | None,
    lease_seconds: float | None,
    spool_mib: int,
    metrics_port: int | None,
    metrics_host: str,
    parent_pid: int | None,
) -> None:
    """Train queued runs."""
    start_logging()
    if parent_pid is not None:
        die_with_parent(parent_pid)
    given = {"database_url": database_url, "broker_url": broker_url, "data_dir": data_dir, "data_root": data_root}
    try:
        settings = Settings.from_environment(**given, lease_seconds=lease_seconds)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not is_torch_installed():
        raise click.ClickException(NO_TORCH)
    make_private(settings.data_dir)
    try:
        booking = Booking(visible_gpus(), settings.gpu_locks or default_folder())
    except GpuError as error:
        raise click.ClickException(str(error)) from None
    slots = slots or max(1, booking.take_all())
    try:
        allow_open_files(2 * needed_by_worker(slots), needed_by_worker(slots), f"a worker with slots: {slots}")
    except TooFewFiles as error:
        raise click.ClickException(str(error)) from None
    processes = ProcessPool(slots, booking)
    processes.start()
    # imported late: the import takes a second, during which the process pool's fork server already imports torch
    from worker.service import run_worker

    run_worker(
        settings, processes, spool_bytes=spool_mib << 20, queues=queues, metrics_host=metrics_host, metrics_port=metrics_port
    )
