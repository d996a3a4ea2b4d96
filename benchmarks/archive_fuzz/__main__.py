"""Can every run of an accepted archive be read?

Makes mutated archives, imports each into a server with a SQLite database, and reads every page and every answer that shows
the imported runs. Prints how many archives were refused and accepted, and how many GET requests answered with a status of 500
or more. The exit status is 1 if there was such an answer.

    python -m benchmarks.archive_fuzz --archives 2000 --seed 1
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.archive_fuzz.genuine import genuine_archive
from benchmarks.archive_fuzz.mutation import Archive, mutated
from benchmarks.archive_fuzz.reading import Tally, take
from benchmarks.archive_fuzz.service import service

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archives", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1, help="Seed of the first archive; each further archive adds 1.")
    arguments = parser.parse_args()
    genuine, tally, begun = Archive(genuine_archive()), Tally(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as server:
        for seed in range(arguments.seed, arguments.seed + arguments.archives):
            take(server, mutated(genuine, seed), tally, seed)
    print(
        "| archives | refused | accepted | GET requests | of these unreadable | seconds |\n| --- | --- | --- | --- | --- | --- |"
    )
    print(f"| {tally.archives:,} | {tally.refused:,} | {tally.accepted:,} | {tally.gets:,} | {tally.unreadable.total():,} |"
          f" {time.perf_counter() - begun:.0f} |")  # fmt: skip
    for what, times in tally.unreadable.most_common(SHOWN):
        print(f"- {times} times: {what}")
    return 1 if tally.unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
