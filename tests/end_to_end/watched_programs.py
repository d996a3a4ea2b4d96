"""The programs of `test_watch_endings.py`: each trains a watched model until it is ended in the given way.

Reads lines of JSON from its input, each a list of programs. For each line it forks one process per program, prints their process
ids, waits for all of them, and prints [exit code, time] for each. The forks happen before anything is watched, so each program
starts, and ends, as one that was started alone; only the import of torch is shared.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import time

import torch

import stablessm
from stablessm_core.outside import recording  # noqa: F401 - imported here once, not by each program
from tests.core.outside.stand_ins import Mamba2Mixer

STEP_SECONDS = 0.02
STEPS = 30  # at least


def wait_for_all(programs: list[int]) -> list[tuple[int, float]]:
    ended: dict[int, tuple[int, float]] = {}
    while len(ended) < len(programs):
        process, status = os.wait()
        ended[process] = os.waitstatus_to_exitcode(status), time.monotonic()
    return [ended[process] for process in programs]


def given() -> dict[str, str]:
    """In each child, the program that it is. In the parent, never returns."""
    for line in sys.stdin:
        programs = []
        for program in json.loads(line):
            process = os.fork()
            if not process:
                return dict(program)
            programs.append(process)
        print(json.dumps(programs), flush=True)
        print(json.dumps(wait_for_all(programs)), flush=True)
    os._exit(0)


program = given()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
os.dup2(os.open(program["output"], os.O_WRONLY | os.O_CREAT, 0o600), 1)
os.dup2(1, 2)
notes = os.open(program["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(what: str) -> None:
    os.write(notes, f"{what} {time.monotonic()}\n".encode())


atexit.register(note, "exit")  # runs after the exit handler of the watched run
model = Mamba2Mixer(5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for p in model.parameters():
    p.grad = torch.full_like(p, 0.1)
run = stablessm.watch(
    model, optimizer, name=program["name"], url=program["url"], token=program["token"], dir=program["files"], project="endings"
)
note("start")
ends = time.monotonic() + float(program["seconds"])
while True:
    time.sleep(STEP_SECONDS)
    if time.monotonic() > ends and run.step >= STEPS:
        note("end")
        if program["how"] == "exception":
            raise ValueError("the loop broke")
        if program["how"] == "exit 3":
            sys.exit(3)
        if program["how"] == "os._exit":
            os._exit(0)
        if program["how"] in ("Ctrl-C", "SIGTERM", "SIGKILL"):
            ends = float("inf")  # the test sends the signal
    run.loss(float(run.step + 1))
    optimizer.step()
    run.log({"a": run.step})
    note(f"step {run.step}")
