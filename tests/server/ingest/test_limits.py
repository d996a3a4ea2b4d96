"""Each limit of a recorded run stands once."""

from __future__ import annotations

import ast
from pathlib import Path

from stablessm_core.report import frames
from stablessm_core.telemetry import limits

ROOT = Path(__file__).parents[3]
ROOMS = (
    "stablessm", "stablessm_core/report", "stablessm_core/telemetry", "stablessm_core/outside", "server/ingest", "server/keep",
    "server/series", "server/importing", "worker",
)  # fmt: skip
# of the files of other tools, and of the cause of a process's end, which becomes a part of a reason
OTHERS = {
    ("server/importing/wandb.py", "HEAD"), ("server/importing/tensorboard.py", "HEAD"), ("worker/exit_causes.py", "MAX_REASON"),
}  # fmt: skip


def assigned(file: Path) -> set[str]:
    """The names in capitals that the module gives a value."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name for name in found if name.isupper()}


def test_a_limit_has_a_value_in_one_file_only() -> None:
    files = {file.relative_to(ROOT).as_posix(): assigned(file) for room in ROOMS for file in (ROOT / room).rglob("*.py")}
    once = {name for name in vars(limits) if name.isupper()} | {"HEAD", "CONTENT_TYPE", "LIMITS"}
    places = {name: [file for file, names in files.items() if name in names and (file, name) not in OTHERS] for name in once}
    assert {name: found for name, found in places.items() if len(found) != 1} == {}


def test_the_answer_to_an_opening_names_the_limits_that_hold() -> None:
    assert frames.LIMITS.record_bytes + frames.HEAD.size == frames.LIMITS.body_bytes
    assert frames.LIMITS.decoded_bytes >= limits.MAX_BLOCK_BYTES
