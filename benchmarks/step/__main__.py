"""How fast is a training step? `python -m benchmarks.step [--output FILE]`

Without --against it times every way to launch a step on this machine (`benchmarks.step.launching`). With --against, on a CPU,
it compares our step with the steps of JAX and of the revision that is checked out in the given folder
(`benchmarks.step.turns`). The comparison takes about 4 minutes for one number of threads:

    git worktree add ../before REVISION; make peers
    .venv-peers/bin/python -m benchmarks.step --against ../before --threads 1
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.step import launching, turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=8, help="number of rounds of the ways to launch")
    parser.add_argument("--minutes", type=float, default=6.5, help="after these, skip the remaining ways to launch")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="a checkout of another revision of this project")
    parser.add_argument("--threads", type=int, default=1, help="with --against: threads, and cores to run on")
    parser.add_argument("--seconds", type=float, default=25.0, help="with --against: time for one shape")
    parser.add_argument("--shapes", default=turns.NAMES, help=f"with --against: some of {turns.NAMES}")
    parser.add_argument("--output", type=Path, help="also write the report to this file")
    parser.add_argument("--alone", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        launching.print_alone(*arguments.alone)
        return
    lines = []
    for line in (turns if arguments.against else launching).report(arguments):
        print(line, flush=True)
        lines.append(line)
    if arguments.output:
        arguments.output.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
