"""The columns of the list of runs: those that have a title, and every field of the configuration and the result by its name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from server.runs.filter_fields import LAYER, LAYER_PATH, MAP, SHORT, STATES, all_names, config_fields
from server.runs.filter_syntax import FilterError
from server.runs.layers import eigenvalues_per_layer
from stablessm_core.layers.registry import layers_text
from stablessm_core.telemetry.series import RESULTS

Kind = Literal["number", "text", "time", "seconds", "bytes", "link", "own"]  # own: the page draws it
MAX_COLUMNS = 30


@dataclass(frozen=True)
class Column:
    """`name` is what it is asked for by; `sort` the field of the filter language that orders by it, "" where none does."""

    name: str
    title: str
    kind: Kind
    meaning: str = ""
    order_by: str | None = None  # where that is not the name

    @property
    def sort(self) -> str:
        wanted = self.name if self.order_by is None else self.order_by
        return wanted if wanted in all_names() else ""


_KNOWN = (
    Column(LAYER, "Layer", "own", "the state-space layers of its blocks"),
    Column(MAP, "Map", "own", "how an eigenvalue follows from its weight"),
    Column("task", "Task", "text"),
    Column("lr", "lr", "number", "learning rate, optimizer.lr"),
    Column("seed", "Seed", "number", "train.seed"),
    Column("batch_size", "Batch", "number", "train.batch_size"),
    Column(STATES, "States", "number", "eigenvalues per layer; sorted by the layer's option d_state"),
    Column("layers", "Layers", "number", "model.n_layers"),
    Column("optimizer.name", "Optimizer", "text"),
    Column("status", "Status", "own"),
    Column("cause", "Cause", "text", "what the verdict names as the cause, once the run has ended"),
    Column("unstable", "Outside", "own", "eigenvalues outside the stability boundary at the last step", ""),
    Column("progress", "Progress", "own", "training steps done", "step"),
    Column("loss", "Loss", "own", "last training loss; NaN or Inf where it is no number any more"),
    Column("eval_loss", "Eval loss", "number"),
    Column("accuracy", "Accuracy", "number"),
    Column("curve", "Curve", "own", "training loss over steps, logarithmic; × where it stops being a number", ""),
    Column("largest_ratio", "Largest ratio", "number", "largest |gradient| / |weight| so far, over all layers and eigenvalues"),
    Column("largest_relative_step", "Largest step", "number", "largest step of an eigenvalue / its distance from the boundary"),
    Column("nearest_distance", "Nearest", "number", "smallest distance of an eigenvalue from the boundary; negative: outside"),
    Column("overflow_budget", "Budget", "number", "share of float32's range within the state's reach; overflows at 1"),
    Column("alerts", "Alerts", "own"),
    Column("submitted_by", "By", "own", "who submitted it, and where it runs or ran"),
    Column("host", "Host", "text"),
    Column("worker", "Worker", "text"),
    Column("gpu_name", "GPU", "text"),
    Column("queue", "Queue", "text"),
    Column("attempt", "Attempts", "number", "times a worker has taken it"),
    Column("sweep", "Sweep", "own"),
    Column("forked_from", "Fork of", "own", "the run whose checkpoint it began from"),
    Column("tags", "Tags", "own", "", ""),
    Column("notes", "Notes", "text"),
    Column("bytes_stored", "Size", "bytes", "recorded numbers and checkpoint files"),
    Column("duration", "Duration", "seconds", "from the first start to the end, or until now"),
    Column("created", "Created", "time"),
    Column("started", "Started", "time"),
    Column("finished", "Ended", "time"),
)  # fmt: skip
_WORDS: dict[Kind, tuple[str, str]] = {
    "number": ("lowest first", "highest first"),
    "bytes": ("smallest first", "largest first"),
    "seconds": ("shortest first", "longest first"),
    "time": ("oldest first", "newest first"),
    "text": ("A to Z", "Z to A"),
}
_OWN_TEXTS = (LAYER, MAP, "status", "submitted_by")
KNOWN = {column.name: column for column in _KNOWN}
DEFAULT = (MAP, "task", "lr", "status", "progress", "loss", "curve", "submitted_by", "alerts", "created")
_AT = {"created": "created_at", "started": "started_at", "finished": "finished_at"}


def columns(names: Sequence[str]) -> list[Column]:
    """The columns of these names, each once, in this order. Raises FilterError for a name that there is not."""
    wanted = [name.strip() for name in names if name.strip()]
    if len(wanted) > MAX_COLUMNS:
        raise FilterError(f"{len(wanted)} columns are too many", f"at most {MAX_COLUMNS}", parameter="columns")
    return [column(name) for name in dict.fromkeys(wanted)]


def column(name: str) -> Column:
    """Raises FilterError."""
    if name in KNOWN or name == LAYER_PATH:
        return KNOWN[LAYER if name == LAYER_PATH else name]
    path = SHORT.get(name, name)
    if path in config_fields():
        return Column(name, path, "number" if config_fields()[path][0] == "number" else "text", path)
    if path.startswith("result.") and path.removeprefix("result.") in RESULTS:
        return Column(name, path, "number", path)
    allowed = ", ".join((*KNOWN, *config_fields(), *(f"result.{result}" for result in RESULTS)))
    raise FilterError(f"there is no column {name[:80]!r}", allowed, parameter="columns")


def orders(shown: Sequence[Column], now: str) -> list[tuple[str, str]]:
    """(sort, in words) of every order that a list with these columns offers, and of the one that it has."""
    found = [("-id", "Newest first"), ("id", "Oldest first"), ("name", "Run: A to Z"), ("-name", "Run: Z to A")]
    for column in shown:
        low, high = _WORDS.get(column.kind, ("A to Z", "Z to A") if column.name in _OWN_TEXTS else _WORDS["number"])
        if column.sort:
            found += [(column.sort, f"{column.title}: {low}"), (f"-{column.sort}", f"{column.title}: {high}")]
    return (
        found if now in dict(found) else [*found, (now, f"{now.removeprefix('-')}, {'falling' if now[:1] == '-' else 'rising'}")]
    )


def value(run: Mapping[str, Any], name: str) -> Any:
    """What a RunAnswer has in this column; None where it has nothing."""
    if name == "duration":
        return None if run["started_at"] is None else (run["finished_at"] or time.time()) - run["started_at"]
    if name == LAYER:
        return layers_text(run["config"])
    if name == STATES:
        return eigenvalues_per_layer(run["config"])
    path = _AT.get(name) or SHORT.get(name, name)
    if path not in config_fields() and not path.startswith("result."):
        return run.get(path)
    at: Any = run["result"] if path.startswith("result.") else run["config"]
    for key in path.removeprefix("result.").split("."):
        if isinstance(at, Mapping):
            at = at.get(key)
        else:
            at = at[int(key)] if isinstance(at, Sequence) and key.isdigit() and int(key) < len(at) else None
    return at
