"""The storm: random faults of every kind are injected while runs train. Afterwards each run is judged."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psutil
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from server.database.models import Run
from server.lifecycle.transitions import MAX_LOSSES
from stablessm_core.telemetry.statuses import FINAL
from tests.chaos.faults import COSTLY, FAULTS, Nothing, Undo, inject
from tests.chaos.site import Site
from tests.chaos.verdict import Recorded, Verdict, judge

_SMALL: dict[str, Any] = {  # about 10 ms per step, with an alert episode that spans checkpoints
    "task": {"name": "polynomial_memory", "length": 200},
    "model": {"d_model": 16, "d_state": 8},
    "train": {"steps": 250, "batch_size": 48, "eval_every": 100, "checkpoint_every": 25, "device": "cpu"},
    "alerts": {"max_grad_over_weight": 1e-3},
}
_UNSTABLE = {"model": {"d_model": 16, "d_state": 8, "reparameterization": {"name": "direct"}}}
CONFIGS: dict[str, dict[str, Any]] = {
    "finishes": _SMALL,
    "rolls back": _SMALL | _UNSTABLE | {
        "optimizer": {"lr": 0.1},
        "train": _SMALL["train"] | {"steps": 120, "on_nonfinite": "rollback", "rollback_lr_factor": 0.05},
    },
    "rolls back in vain": _SMALL | _UNSTABLE | {
        "optimizer": {"lr": 0.1}, "train": _SMALL["train"] | {"on_nonfinite": "rollback", "max_rollbacks": 2}
    },
}  # fmt: skip
UNFINISHED = 4  # number of queued or training runs that is maintained until the last injection
QUIET_SECONDS = 6.0  # after this long without a training run, faults are also injected while runs are queued or claimed
OUTAGE_STEPS = 3000
SETTLE_SECONDS = 240.0


@dataclass
class Injection:
    kind: str
    at: float
    trained: dict[int, int]  # run -> its step at the injection
    ends_at: float
    undo: Undo | None
    recovered_after: float | None = None  # seconds until every run in `trained` has advanced or ended


@dataclass
class Storm:
    """Faults from one seed. `wanted`: number of injections; `pause`: average number of seconds between two injections."""

    site: Site
    seed: int
    wanted: int
    least_runs: int
    pause: float
    say: Callable[[str], None] = print
    injections: list[Injection] = field(default_factory=list)
    runs: dict[int, str] = field(default_factory=dict)  # run -> name of its configuration
    truth: dict[str, Recorded] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def learn_the_truth(self) -> None:
        """Train each configuration once without faults and keep its records."""
        names = {self.site.submit(config): name for name, config in CONFIGS.items()}
        self._wait(names, SETTLE_SECONDS)
        self.truth = {name: Recorded.of(self.site.database, run_id) for run_id, name in names.items()}
        statuses = {name: recorded.run.status for name, recorded in self.truth.items()}
        self.say(f"undisturbed: {statuses}")

    def rage(self) -> None:
        """Inject faults while enough runs train, wait until all runs have ended, and judge them."""
        chance = random.Random(self.seed)
        kinds: list[str] = []
        clerk, submitting = ThreadPoolExecutor(1), None
        next_at = time.monotonic()
        while len(self.injections) < self.wanted or len(self.runs) < self.least_runs:
            self._repair()
            states = self._states()
            self._notice(states)
            if submitting is not None and submitting[1].done():
                self.runs[submitting[1].result()] = submitting[0]
                submitting = None
            elif submitting is None and states and sum(1 for status, *_ in states.values() if status not in FINAL) < UNFINISHED:
                name = chance.choices(list(CONFIGS), weights=[4, 1, 1])[0]
                submitting = name, clerk.submit(self.site.submit, CONFIGS[name])  # in a thread, because the server may be down
            if time.monotonic() >= next_at:
                if not kinds:  # every kind of fault is injected equally often, in random order
                    kinds = list(FAULTS)
                    chance.shuffle(kinds)
                if self._inject(kinds, chance, states):
                    next_at = time.monotonic() + chance.uniform(0, 2 * self.pause)
            time.sleep(0.05)
        self._repair(everything=True)
        if submitting is not None:
            self.runs[submitting[1].result()] = submitting[0]
        clerk.shutdown()
        self._wait(self.runs, SETTLE_SECONDS)
        for run_id, name in sorted(self.runs.items()):
            self.verdicts[run_id] = judge(Recorded.of(self.site.database, run_id), self.truth[name])

    def outage(self, seconds: float) -> None:
        """Make the database unreachable for `seconds`, while a run trains for much longer than a lease."""
        config = _SMALL | {"train": _SMALL["train"] | {"steps": OUTAGE_STEPS}}
        run_id = self.site.submit(config)
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._states()[run_id][1] < 100:
            if time.monotonic() > deadline:
                raise TimeoutError("the run that the outage should affect does not train")
            time.sleep(0.1)
        stored = self._states()[run_id][1]
        self.site.postgres.kill()
        time.sleep(seconds)
        self.site.postgres.start()
        begun = time.monotonic()
        self._wait([run_id], SETTLE_SECONDS + seconds)
        arrived = time.monotonic() - begun
        again = self.site.submit(config)
        self._wait([again], SETTLE_SECONDS)
        found = Recorded.of(self.site.database, run_id)
        self.verdicts[run_id] = verdict = judge(found, Recorded.of(self.site.database, again))
        self.say(
            f"database away for {seconds:g} s, from step {stored} of {OUTAGE_STEPS} on: {found.run.attempt} attempt(s), values "
            f"lost {verdict.lost}, doubled {verdict.doubled}; everything stored {arrived:.1f} s after its return"
        )

    @property
    def problems(self) -> list[str]:
        return [problem for verdict in self.verdicts.values() for problem in verdict.problems]

    def recoveries(self, kind: str) -> list[float]:
        return [i.recovered_after for i in self.injections if i.kind == kind and i.recovered_after is not None]

    def _inject(self, kinds: list[str], chance: random.Random, states: dict[int, tuple[str, int, int]]) -> bool:
        training = {run_id: step for run_id, (status, step, _) in states.items() if status == "running"}
        # a run that loses its worker too often without a new checkpoint ends as failed: let it advance first
        fragile = any(lost >= MAX_LOSSES - 2 for status, _, lost in states.values() if status not in FINAL)
        quiet = not self.injections or time.monotonic() - self.injections[-1].at > QUIET_SECONDS
        if not training and not quiet:
            return False  # no run to disturb
        kind = next((k for k in kinds if not (fragile and k in COSTLY)), None)
        if kind is None or any(i.undo and i.kind.split(":")[0] == kind.split(":")[0] for i in self.injections):
            return False
        try:
            seconds, undo = inject(kind, self.site, chance)
        except (Nothing, psutil.NoSuchProcess):  # no run is training, or its process has just ended
            return False
        kinds.remove(kind)
        now = time.monotonic()
        self.injections.append(Injection(kind, now, training, now + seconds, undo))
        self.say(f"{len(self.injections):4d}  {kind}, for {seconds:.1f} s; training: {training}")
        return True

    def _repair(self, *, everything: bool = False) -> None:
        for injection in self.injections:
            if injection.undo is not None and (everything or time.monotonic() >= injection.ends_at):
                injection.undo()
                injection.undo = None

    def _notice(self, states: dict[int, tuple[str, int, int]]) -> None:
        for injection in self.injections:
            if injection.recovered_after is None and injection.undo is None:
                then = injection.trained.items()
                if states and all(
                    states[r][0] in FINAL or (states[r][0] == "running" and states[r][1] > step) for r, step in then
                ):
                    injection.recovered_after = time.monotonic() - injection.at

    def _wait(self, runs: Iterable[int], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            self._repair()
            states = self._states()
            self._notice(states)
            with_end = {run_id for run_id, (status, *_) in states.items() if status in FINAL}
            if states and set(runs) <= with_end:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"runs {sorted(set(runs) - with_end)} have not ended after {seconds:g} s: {states}")
            time.sleep(0.1)

    def _states(self) -> dict[int, tuple[str, int, int]]:
        """Run -> status, step, number of lost workers; empty while PostgreSQL is unreachable."""
        try:
            with self.site.database.read() as session:
                rows = session.execute(select(Run.id, Run.status, Run.step, Run.workers_lost))
                return {run_id: (status, step, lost) for run_id, status, step, lost in rows}
        except DBAPIError:
            return {}


def table(storm: Storm) -> str:
    """The Markdown table of docs/reliability.md: fault, times injected, values lost, values doubled, recovery time."""
    touched = {kind: {run for i in storm.injections if i.kind == kind for run in i.trained} for kind in FAULTS}
    lines = [
        "| fault | times injected | values lost | values doubled | recovery, median | longest |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, runs in touched.items():
        hit = [storm.verdicts[run] for run in runs if run in storm.verdicts]
        times = storm.recoveries(kind)
        count = sum(i.kind == kind for i in storm.injections)
        spans = f"{statistics.median(times):.1f} s | {max(times):.1f} s" if times else "- | -"
        lines.append(f"| {kind} | {count} | {sum(v.lost for v in hit)} | {sum(v.doubled for v in hit)} | {spans} |")
    everything = storm.verdicts.values()
    times = [i.recovered_after for i in storm.injections if i.recovered_after is not None]
    spans = f"{statistics.median(times):.1f} s | {max(times):.1f} s" if times else "- | -"
    total = f"{sum(v.lost for v in everything)} | {sum(v.doubled for v in everything)} | {spans}"
    lines.append(f"| **all, over {len(storm.verdicts)} runs** | {len(storm.injections)} | {total} |")
    return "\n".join(lines)
