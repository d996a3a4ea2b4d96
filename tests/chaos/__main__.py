"""`python -m tests.chaos`: the long chaos suite. Prints each fault and then the table; exits with status 1 on violations."""

from __future__ import annotations

import argparse
import os
import platform
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.services import Missing
from tests.chaos.site import Site
from tests.chaos.storm import Storm, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--injections", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20, help="Submit at least this many runs.")
    parser.add_argument("--seed", type=int, default=None, help="Seed of the faults; default: a random one, which is printed.")
    parser.add_argument("--pause", type=float, default=2.0, help="Seconds between two injections, on average.")
    parser.add_argument("--lease", type=int, default=6, help="--lease-seconds of the workers.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--outage", type=float, default=30.0, help="Length of the final database outage in seconds; 0: no outage."
    )
    parser.add_argument("--report", type=Path, help="File to which the table is also written.")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the finally block below cleans up
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    again = f"python -m tests.chaos --seed {seed} --injections {given.injections} --runs {given.runs}"
    print(f"seed {seed}; the same faults again: {again}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stablessm-chaos-", ignore_cleanup_errors=True) as folder:
        site = Site(Path(folder), workers=given.workers, lease=given.lease)
        try:
            site.open()
            storm = Storm(site, seed, given.injections, given.runs, given.pause, say=lambda line: print(line, flush=True))
            storm.learn_the_truth()
            storm.rage()
            if given.outage:
                storm.outage(given.outage)
        except Exception:
            print(site.logs(), file=sys.stderr)
            raise
        finally:
            site.close()
    facts = (
        f"{len(storm.injections)} injections over {len(storm.verdicts)} runs in {time.monotonic() - begun:.0f} s, seed {seed}, "
        f"lease {given.lease} s, {given.workers} workers, {os.cpu_count()} cores, Linux {platform.release()}, Python "
        f"{platform.python_version()}. Command: `{again}`"
    )
    report = f"{facts}\n\n{table(storm)}\n"
    print(f"\n{report}")
    for problem in storm.problems:
        print(problem)
    if given.report:
        given.report.write_text(f"# Faults, injected\n\n{report}")
    enough = len(storm.injections) >= given.injections and len(storm.runs) >= given.runs
    return 0 if enough and not storm.problems else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Missing as missing:
        sys.exit(f"cannot run here: {missing}")
