"""Archives hold reported runs, and an imported reported run equals the exported one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from server.database.connection import Database
from server.database.models import Run
from server.keep.archive import ArchiveError
from server.keep.exports import write_archive
from server.keep.imports import import_archive
from stablessm_core.telemetry.free_json import MAX_DEPTH
from stablessm_core.telemetry.how import How
from stablessm_core.telemetry.statuses import AT_REST
from tests.server.recording import run_of
from tests.server.reported import PATHS, ended, opened, recorded

pytestmark = pytest.mark.both_engines
KEPT = (
    "kind",
    "project",
    "config",
    "reported_config",
    "how",
    "layers",
    "status",
    "name",
    "step",
    "divergence",
    "result",
    "forms",
)


def deep(depth: int) -> Any:
    found: Any = "bottom"
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.parametrize("status", AT_REST)
def test_an_exported_reported_run_can_be_imported_again(database: Database, status: str) -> None:
    config = {"deep": deep(MAX_DEPTH - 2), "list": [1, None, "text"]}
    how = How(optimizer="lion", lr=0.1, total_steps=2**50)
    run = opened(database, config=config, how=how, layers=PATHS, project="hybrid", name="reported")
    recorded(database, run, first=2**40)
    ended(database, run, status, result={"train_loss": "NaN", "val/acc": 0.5})
    file = io.BytesIO()
    write_archive(database, [run], file, "here")
    file.seek(0)
    done = import_archive(database, file, submitted_by=None, user_id=None)
    (new, old) = done.runs[0]
    assert old == run
    before, after = run_of(database, run), run_of(database, new)
    assert {name: getattr(after, name) for name in KEPT} == {name: getattr(before, name) for name in KEPT}
    assert after.external_id is None, "the UUID still belongs to the exported run"


def test_an_archive_with_a_lost_run_that_we_train_is_refused(database: Database, tmp_path: Path) -> None:
    run = opened(database)
    ended(database, run, "lost")
    with database.write() as session:
        row = session.get_one(Run, run)
        row.kind, row.how = "trained", None
    file = io.BytesIO()
    write_archive(database, [run], file, "here")
    file.seek(0)
    with pytest.raises(ArchiveError, match="status cannot be 'lost'"):
        import_archive(database, file, submitted_by=None, user_id=None)
