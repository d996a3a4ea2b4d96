"""Reads `wandb-history.jsonl`, which W&B wrote before its binary files, and what lies beside it: wandb-metadata.json,
wandb-summary.json and config.yaml."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, parse_json
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.json_lines import lines_of
from server.importing.steps import whole
from server.importing.wandb import add_logged, add_summary

TOOL = "W&B"
NAME = "wandb-history.jsonl"
FOLDER = re.compile(r"(?:offline-)?(?:dry)?run-\d{8}_\d{6}-(\w+)")
VALUE = re.compile(r"  value: (.*)")
STATUSES = {"finished": "finished", "failed": "failed", "crashed": "failed", "killed": "cancelled"}


def _claim(file: Candidate) -> Path | None:
    return file.path if file.path.name == NAME else None


def _read(file: Claimed, advance: Advance) -> Iterator[FoundRun]:
    folder = file.path.resolve().parent
    known = FOLDER.fullmatch(folder.name) or FOLDER.fullmatch(folder.parent.name)
    run = FoundRun(TOOL, "", known[1] if known else folder.name)
    step = -1
    for values in lines_of(file.path, run, advance, growing=file.growing):
        given = whole(values.get("_step"))
        step = step + 1 if given is None else given
        if not run.identity:
            first = hashlib.sha256(repr(sorted(values.items(), key=str)).encode(errors="replace")).hexdigest()
            run.identity = f"history\0{run.name if known else folder}\0{first}"
        add_logged(run, step, values)
    run.identity = run.identity or f"history\0{folder}"
    _describe(run, file.path.parent)
    yield run


def _describe(run: FoundRun, folder: Path) -> None:
    add_summary(run, _object(run, folder / "wandb-summary.json"))
    found = _object(run, folder / "wandb-metadata.json")
    run.name = str(found.get("name") or run.name)
    for name in ("startedAt", "heartbeatAt"):
        with suppress(ValueError):
            run.saw(_time(found.get(name)))
    run.status = STATUSES.get(str(found.get("state")), "finished")
    run.running = found.get("state") == "running"
    if code := found.get("exitcode"):
        run.status, run.reason = "failed", f"exit code {code}"
    run.tags += [str(tag) for tag in found.get("tags") or () if isinstance(tag, str)]
    _add_config(run, folder / "config.yaml")


def _object(run: FoundRun, path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = parse_json(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        run.remarks.append(f"{path}: it is no JSON ({error}); it is left out")
        return {}
    return found if isinstance(found, dict) else {}


def _time(written: Any) -> float | None:
    """Epoch seconds of a time in ISO 8601, which W&B writes in UTC."""
    if not isinstance(written, str):
        return None
    found = datetime.fromisoformat(written)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _add_config(run: FoundRun, path: Path) -> None:
    """Add the settings whose value stands in one line below their name. Settings of several lines are counted."""
    if not path.is_file():
        return
    name, done = "", True
    for line in [*path.read_text(errors="replace").splitlines(), "end:"]:
        if line[:1].strip() and not line.startswith("#"):
            run.left_out["settings of several lines"] += not done
            name, done = line.partition(":")[0].strip("'\""), False
            done = name in ("wandb_version", "_wandb")
        elif not done and (found := VALUE.fullmatch(line)) and found[1].strip():
            run.config[name], done = _scalar(found[1].strip()), True
    run.left_out = +run.left_out


def _scalar(written: str) -> Any:
    with suppress(ValueError, RecursionError):
        return parse_json(written)
    with suppress(ValueError):
        return float(written)
    return {"null": None, "~": None, "True": True, "False": False}.get(written, written.strip("'\""))


IMPORTER = Importer("W&B's old wandb-history.jsonl", _claim, _read)
