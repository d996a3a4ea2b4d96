"""The autopsy of a planted run, as the service asks for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.verdicts.recorded import Recorded
from stablessm_core.autopsy.perform import perform
from stablessm_core.autopsy.request import AutopsyRequest, RecordedRow, SavedState, Trouble
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.verdict import Run, Source
from stablessm_core.verdict.beginning import trouble_start


def opened(recorded: Recorded, run: Run, source: Source, scratch: Path) -> dict[str, Any]:
    """The findings of the autopsy of the fatal step. recorded: a run that died, whose checkpoints still exist."""
    fatal = run.fatal
    assert fatal is not None
    step, loss = recorded.sink.series(names.TRAIN_LOSS)
    norms = dict(zip(*(part.tolist() for part in recorded.sink.series(names.GRAD_NORM)), strict=True))

    def trouble(findings: dict[str, Any] | None = None) -> Trouble | None:
        found = trouble_start(run if findings is None else replace(run, autopsy=findings), source)
        return None if found is None else Trouble(found.step, found.kind, found.shown)

    return perform(
        AutopsyRequest(
            config=parse_config(recorded.config),
            data_root=scratch,
            step=int(fatal["step"]),
            rows={int(s): RecordedRow(float(value[0]), norms[int(s)][0]) for s, value in zip(step, loss, strict=True)},
            checkpoints=tuple(SavedState(*checkpoint) for checkpoint in reversed(recorded.sink.checkpoints)),
            trouble=trouble(),
            plan=trouble,
            environment=recorded.environment,
            scratch=scratch,
        )
    )
