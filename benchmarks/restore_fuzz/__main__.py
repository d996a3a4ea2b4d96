"""Does `stablessm restore` restore a file completely, or refuse it in one sentence and change nothing?

Makes hostile backup files of several kinds, restores each into an empty installation, and prints the counts by kind. A violation
is an answer that is not one sentence, a change after a refusal, or a row or file that a restore has left out. The exit status is
1 if there is one.

    python -m benchmarks.restore_fuzz --backups 500 --seed 0
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.restore_fuzz.hostile import BYTES, CONTENTS, hostile
from benchmarks.restore_fuzz.trial import Tally, Targets, genuine_backup

SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backups", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="Seed of the first file; each further file adds 1.")
    arguments = parser.parse_args()
    tally, begun = Tally(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        genuine, targets = genuine_backup(Path(folder) / "genuine"), Targets(Path(folder) / "targets")
        for seed in range(arguments.seed, arguments.seed + arguments.backups):
            targets.take(*hostile(genuine, seed), seed, tally)
    print("| kind of file | files | refused | restored fully | violations |\n| --- | ---: | ---: | ---: | ---: |")
    for kind in (*BYTES, *CONTENTS):
        wrong = sum(one.startswith(f"{kind}, ") for one in tally.wrong)
        files = tally.refused[kind] + tally.restored[kind]
        print(f"| {kind} | {files} | {tally.refused[kind]} | {tally.restored[kind]} | {wrong} |")
    refused, restored = tally.refused.total(), tally.restored.total()
    print(f"| **all** | {arguments.backups} | {refused} | {restored} | {len(tally.wrong)} |")
    print(f"\n{time.perf_counter() - begun:.0f} s")
    for what in tally.wrong[:SHOWN]:
        print(f"- {what}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
