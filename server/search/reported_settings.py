"""The free configuration of a reported run as settings with dotted paths, such as `config.optimizer.lr`.

Any JSON is allowed. A path names keys of objects and positions in lists. Filters, list columns, comparisons and pages use the
same paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import case, func

from server.database.models import Run
from server.search.filter_fields import number

PREFIX = "config."
LONGEST_SHOWN = 100  # maximum number of characters of a value in a table
_RESERVED = frozenset('{}",\\')  # these characters have a meaning in a path of the database
SHORT_LIST = 20  # a longer list, or a list with objects in it, becomes one setting per item


def is_setting(name: str) -> bool:
    """True if the name is a path into the configuration of reported runs."""
    return name.startswith(PREFIX) and all(name.split(".")) and not _RESERVED.intersection(name)


def settings_of_config(config: Any) -> dict[str, Any]:
    """Every value of a free configuration by dotted path. An empty object or list is a value; a short list of numbers and texts
    is one value."""
    found: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [(PREFIX.rstrip("."), config)]
    while waiting:
        path, value = waiting.pop()
        items = _items(value)
        if items:
            waiting += [(f"{path}.{key}", inner) for key, inner in reversed(items)]
        else:
            found[path] = value
    return {path: value for path, value in found.items() if value != {} or path != "config"}


def setting_at(config: Any, name: str) -> Any:
    """The value of a path such as "config.optimizer.lr" in a free configuration; None if there is no such value."""
    for key in name.removeprefix(PREFIX).split("."):
        if isinstance(config, Mapping):
            config = config.get(key)
        elif isinstance(config, list):
            config = config[int(key)] if _is_position(key) and int(key) < len(config) else None
        else:
            return None
    return config


def shown_setting(value: Any) -> Any:
    """A value of a free configuration as the list of runs shows it: numbers and short texts unchanged, all others shortened."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def setting_sql(name: str, dialect: str) -> tuple[Any, Any]:
    """SQL for the value of a path as text, and as a number: in the free configuration of a reported run, or in the configuration
    of a trained run. NULL if there is no such value, or if it is no number. name: a path for which is_setting is true, so no key
    has a character that has a meaning in a path of the database."""
    keys = tuple(int(key) if _is_position(key) else key for key in name.removeprefix(PREFIX).split("."))
    columns = (Run.reported_config, Run.config)
    texts = (_text(column, keys, dialect) for column in columns)
    return func.coalesce(*texts), func.coalesce(*(number(column[keys], dialect) for column in columns))


def _is_position(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) < 10


def _text(column: Any, keys: tuple[str | int, ...], dialect: str) -> Any:
    text = column[keys].as_string()
    if dialect == "postgresql":
        return text
    path = "$" + "".join(f"[{key}]" if isinstance(key, int) else f'."{key}"' for key in keys)
    kind = func.json_type(column, path)  # SQLite reads true and false as 1 and 0
    return case((kind.in_(["true", "false"]), kind), else_=text)


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list) and (len(value) > SHORT_LIST or any(isinstance(one, list | Mapping) for one in value)):
        return list(enumerate(value))
    return []
