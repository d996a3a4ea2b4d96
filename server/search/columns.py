"""The columns that the list of runs can show: columns with a title, and every field of the configuration and the result by its
name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.lifecycle.reported import REPORTED
from server.lifecycle.run_fields import FIELDS
from server.lifecycle.run_fields import ColumnKind as Kind
from server.search.filter_fields import LAYER, LAYER_PATH, MAP, MAP_TITLE, SHORT, STATES, all_names, config_fields, metric_name
from server.search.filter_syntax import FilterError
from server.search.layers import eigenvalues_per_layer
from server.search.reported_settings import is_setting, setting_at, shown_setting
from stablessm_core.spec.layers import layers_text
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.telemetry.metrics import name_error
from stablessm_core.telemetry.series import RESULTS

MAX_COLUMNS = 30


@dataclass(frozen=True)
class Column:
    """A column of the list. `name` selects the column in a URL. `sort` is the field of the filter language that sorts by the
    column; "" if there is none."""

    name: str
    title: str
    kind: Kind
    meaning: str = ""
    order_by: str | None = None  # the field to sort by; None: the name

    @property
    def sort(self) -> str:
        wanted = self.name if self.order_by is None else self.order_by
        return wanted if wanted in all_names() or metric_name(wanted) is not None else ""


# columns of the configuration and the result; server/lifecycle/run_fields.py defines the columns of the run's own fields
_OF_CONFIG = (
    Column(LAYER, "Layer", "own", "the state-space layers of its blocks"),
    Column(MAP, "Map", "own", "how an eigenvalue follows from its weight"),
    Column("task", "Task", "text"),
    Column("lr", "lr", "number", "learning rate, optimizer.lr"),
    Column("seed", "Seed", "number", "train.seed"),
    Column("batch_size", "Batch", "number", "train.batch_size"),
    Column(STATES, "States", "number", "eigenvalues per layer; sorted by the layer's option d_state"),
    Column("layers", "Layers", "number", "model.n_layers"),
    Column("optimizer.name", "Optimizer", "text"),
    Column("loss", "Loss", "own", "last training loss; NaN or Inf if it is not finite"),
    Column("eval_loss", "Eval loss", "number", "mean loss on the evaluation split; NaN or Inf if it is not finite"),
    Column("accuracy", "Accuracy", "number"),
)
_SHOWN = {field.column_name: field for field in FIELDS if field.column}
# The order in which the page offers columns. Fields that are not listed here come last.
_ORDER = (
    LAYER, MAP, "project", "kind", "task", "lr", "seed", "batch_size", STATES, "layers", "optimizer.name",
    "status", "cause", "unstable", "progress",
    "loss", "eval_loss", "accuracy", "curve", "largest_ratio", "largest_relative_step", "nearest_distance", "overflow_budget",
    "alerts", "submitted_by", "host", "worker", "gpu_name", "queue", "attempt", "sweep", "forked_from", "tags", "notes",
    "bytes_stored", "duration", "created", "started", "finished",
)  # fmt: skip
_WORDS: dict[Kind, tuple[str, str]] = {
    "number": ("lowest first", "highest first"),
    "bytes": ("smallest first", "largest first"),
    "seconds": ("shortest first", "longest first"),
    "time": ("oldest first", "newest first"),
    "text": ("A to Z", "Z to A"),
}
_OWN_TEXTS = (LAYER, MAP, "status", "submitted_by")
_known = {column.name: column for column in _OF_CONFIG} | {
    name: Column(name, shown.title, shown.kind, shown.meaning, shown.sort)
    for name, field in _SHOWN.items()
    if (shown := field.column)
}
KNOWN = {name: _known[name] for name in _ORDER} | _known
DEFAULT = (MAP, "task", "lr", "status", "progress", "loss", "eval_loss", "curve", "submitted_by", "alerts", "created")


def columns(names: Sequence[str]) -> list[Column]:
    """The columns with these names, each once, in this order. Raises FilterError for an unknown name."""
    wanted = [name.strip() for name in names if name.strip()]
    if len(wanted) > MAX_COLUMNS:
        raise FilterError(f"{len(wanted)} columns are too many", f"at most {MAX_COLUMNS}", parameter="columns")
    return list(dict.fromkeys(map(column, wanted)))


def column(name: str) -> Column:
    """The column with this name. Raises FilterError for an unknown name."""
    name = {LAYER_PATH: LAYER, MAP_TITLE: MAP}.get(name, name)
    if name in KNOWN:
        return KNOWN[name]
    if is_setting(name):
        return Column(name, name, "text", f"{name} in the configuration")
    if (metric := metric_name(name)) is not None:
        if allowed := name_error(metric):
            raise FilterError(f"there is no column {name[:80]!r}", allowed, parameter="columns")
        return Column(name, metric, "number", f"newest value of {metric}")
    path = SHORT.get(name, name)
    if path in config_fields():
        return Column(name, path, "number" if config_fields()[path][0] == "number" else "text", path)
    if path.startswith("result.") and path.removeprefix("result.") in RESULTS:
        return Column(name, path, "number", path)
    known = (*KNOWN, *config_fields(), *(f"result.{result}" for result in RESULTS))
    raise FilterError(f"there is no column {name[:80]!r}{did_you_mean(name, known)}", listed(known), parameter="columns")


def orders(shown: Sequence[Column], now: str) -> list[tuple[str, str]]:
    """(sort, description) of every order that a list with these columns offers, including its current order `now`."""
    found = [("-id", "Newest first"), ("id", "Oldest first"), ("name", "Run: A to Z"), ("-name", "Run: Z to A")]
    for column in shown:
        low, high = _WORDS.get(column.kind, ("A to Z", "Z to A") if column.name in _OWN_TEXTS else _WORDS["number"])
        if column.sort:
            found += [(column.sort, f"{column.title}: {low}"), (f"-{column.sort}", f"{column.title}: {high}")]
    return (
        found if now in dict(found) else [*found, (now, f"{now.removeprefix('-')}, {'falling' if now[:1] == '-' else 'rising'}")]
    )


def value(run: Mapping[str, Any], name: str) -> Any:
    """The value of this column in a RunAnswer; None if the run has no such value."""
    if name == "duration":
        return None if run["started_at"] is None else max(0.0, (run["finished_at"] or time.time()) - run["started_at"])
    reported = run.get("kind") == REPORTED
    if is_setting(name):
        return shown_setting(setting_at(run["reported_config"] if reported else run["config"], name))
    if name == LAYER:
        return None if reported else layers_text(run["config"])
    if name == STATES:
        return None if reported else eigenvalues_per_layer(run["config"])
    if (metric := metric_name(name)) is not None:
        return (run["metrics"] or {}).get(metric)
    if name in _SHOWN:
        return run.get(_SHOWN[name].name)
    path = SHORT.get(name, name)
    if path not in config_fields() and not path.startswith("result."):
        return run.get(path)
    found: Any = run["result"] if path.startswith("result.") else run["config"]
    for key in path.removeprefix("result.").split("."):
        if isinstance(found, Mapping):
            found = found.get(key)
        else:
            found = found[int(key)] if isinstance(found, Sequence) and key.isdigit() and int(key) < len(found) else None
    return found
