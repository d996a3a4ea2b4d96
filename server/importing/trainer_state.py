"""Reads `trainer_state.json`, which the Trainer of transformers writes beside its checkpoints.

The files in the folders `checkpoint-N` of one output folder, and the file in the output folder itself, are states of one
training. The one with the most steps holds everything that the others hold.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, Unreadable, as_float, parse_json
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.steps import whole

TOOL = "transformers"
NAME = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-\d+")
GROUPS = ("eval", "test")  # eval_loss is eval/loss in a live run
FINAL = ("total_flos", "train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second")
SETTINGS = (
    "max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps", "best_metric",
    "best_model_checkpoint", "trial_name", "trial_params",
)  # fmt: skip


def _claim(file: Candidate) -> Path | None:
    """The output folder of the training."""
    if file.path.name != NAME and not (file.head.lstrip().startswith(b"{") and b'"log_history"' in file.head):
        return None
    _state(file.path)
    folder = file.path.resolve().parent
    inside = CHECKPOINT.fullmatch(folder.name)
    return folder.parent if inside else folder


def _state(path: Path) -> dict[str, Any]:
    """The content of the file. Raises Unreadable."""
    try:
        found = parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{path}: it is no JSON, or not whole ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("log_history"), list):
        raise Unreadable(f"{path}: it has no list called log_history")
    return found


def _read(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    states = {path: _state(path) for path in files.paths}
    path, state = max(states.items(), key=lambda one: (whole(one[1].get("global_step")) or 0, len(one[1]["log_history"])))
    folder = path.resolve().parent
    folder = folder.parent if CHECKPOINT.fullmatch(folder.name) else folder
    history = [entry for entry in state["log_history"] if isinstance(entry, dict)]
    first = json.dumps(history[:1], sort_keys=True)
    run = FoundRun(TOOL, f"{folder}\0{hashlib.sha256(first.encode(errors='replace')).hexdigest()}", folder.name)
    run.config = {name: state[name] for name in SETTINGS if state.get(name) is not None}
    if len(states) > 1:
        run.left_out["earlier states of the same training"] += len(states) - 1
    for entry in history:
        _add(run, entry)
    advance(sum(one.stat().st_size for one in files.paths))
    yield run


def _add(run: FoundRun, entry: dict[str, Any]) -> None:
    step = whole(entry.get("step"))
    if step is None:
        run.left_out["entries without a whole number as step"] += 1
        return
    final = "train_runtime" in entry  # the last entry is a summary, whose train_loss is a mean over all steps
    for name, value in entry.items():
        if final and name in FINAL:
            if isinstance(value, int | float):
                run.result[name] = as_float(value)
        elif name != "step":
            group, _, rest = name.partition("_")
            run.add_json(f"{group}/{rest}" if group in GROUPS and rest else name, step, value)


IMPORTER = Importer("trainer_state.json of transformers", _claim, _read)
