"""Measures how much load the service handles on this machine, and prints a table of the measured and the promised figures.

    python -m benchmarks.load [ingest|viewers|claims|api|storage|mlflow|memory ...] [--seconds 300] [--minutes 60] [--short]

By default every part except `memory` runs. Each part creates a PostgreSQL database on the server of --database-url and
drops it afterwards. `--write FILE` also writes the table to a file.
`--short` runs the same code for seconds instead of minutes and with less data, to test the benchmark itself.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import claim
from benchmarks.load import api, ingest, memory, mlflow, storage, viewers
from benchmarks.service import POSTGRES, Row, new_database, percentiles

HERE = Path(__file__).parent.parent


def claims(url: str, folder: Path, *, queued: int) -> list[Row]:
    with new_database(url, folder / "claims") as database:
        seconds = claim.claims(database, queued)
    return [Row(f"{len(seconds)} claims with {queued:,} queued", percentiles(seconds, 1), "< 20 ms")]


@dataclass(frozen=True)
class Options:
    """The options that each part receives. seconds: duration of the sustained load. minutes: duration of `memory`. short: True
    with `--short`. folder: a temporary folder for the part's files."""

    url: str
    seconds: float
    minutes: float
    short: bool
    folder: Path


PARTS: dict[str, Callable[[Options], list[Row]]] = {
    "ingest": lambda o: ingest.measure(o.url, o.folder, seconds=o.seconds),
    "viewers": lambda o: viewers.measure(o.url, o.folder, seconds=min(60.0, o.seconds), viewers=200 if o.short else 1000),
    "claims": lambda o: claims(o.url, o.folder, queued=1000 if o.short else 10_000),
    "api": lambda o: api.measure(o.url, o.folder, runs=200 if o.short else 5000, seconds=min(60.0, o.seconds)),
    "storage": lambda o: storage.measure(o.url, o.folder, steps=200 if o.short else 2500),
    "mlflow": lambda o: mlflow.measure(o.url, o.folder, steps=20 if o.short else 200),
    "memory": lambda o: memory.measure(o.url, o.folder, minutes=o.minutes),
}
ON_REQUEST = {"memory"}  # parts that take an hour


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all except memory")
    parser.add_argument("--database-url", default=POSTGRES)
    parser.add_argument("--seconds", type=float, help="duration of the sustained load; default 300, or 5 with --short")
    parser.add_argument("--minutes", type=float, help="duration of `memory`; default 60, or 0.5 with --short")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--write", type=Path, help="also write the report to this file under benchmarks/")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM also drops the databases
    lines, loads, began = [], [os.getloadavg()[0]], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stablessm-load-") as folder:
        options = Options(
            given.database_url,
            given.seconds or (5.0 if given.short else 300.0),
            given.minutes or (0.5 if given.short else 60.0),
            given.short,
            Path(folder),
        )
        for name in given.parts or [name for name in PARTS if name not in ON_REQUEST]:
            print(f"{name} ...", file=sys.stderr, flush=True)
            for row in PARTS[name](options):
                lines.append(f"| {name} | {row.what} | {row.measured} | {row.promised} |")
                print(lines[-1], file=sys.stderr, flush=True)
            loads.append(os.getloadavg()[0])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    report = "\n".join([
        "# Load",
        "",
        f"`python -m benchmarks.load {' '.join(sys.argv[1:])}` at {commit} on {os.cpu_count()} {platform.machine()} cores, "
        f"Python {platform.python_version()}, PostgreSQL on the same machine; {time.monotonic() - began:.0f} s.",
        f"Load average before the first part and after each: {', '.join(f'{load:.1f}' for load in loads)}"
        + (" (the machine had other work: not final figures)." if max(loads[0], 0) > 1 else "."),
        "",
        "| part | what | measured | promised |",
        "| --- | --- | --- | --- |",
        *lines,
        "",
    ])  # fmt: skip
    print(report)
    if given.write:
        (HERE / given.write).write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
