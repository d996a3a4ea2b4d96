"""Claiming the next run while thousands wait; `benchmarks.claim` has the long form of it, on both engines."""

from __future__ import annotations

from pathlib import Path

from benchmarks.claim import CLAIMS, claims
from benchmarks.load.harness import Row, new_database, percentiles


def measure(url: str, folder: Path, *, queued: int) -> list[Row]:
    with new_database(url, folder / "claims") as database:
        return [Row(f"{CLAIMS} claims with {queued:,} queued", percentiles(claims(database, queued), 1), "< 20 ms")]
