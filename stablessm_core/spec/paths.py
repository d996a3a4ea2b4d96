"""Read and set values of a decoded configuration by dotted path, such as "optimizer.lr"."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from stablessm_core.spec.errors import ConfigError

EXAMPLE = "a dotted path such as optimizer.lr"


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `config` with the values of `settings`, which is keyed by dotted path. Raises ConfigError for a bad path."""
    changed: dict[str, Any] = copy.deepcopy(dict(config))
    for path, value in settings.items():
        *sections, last = path.split(".")
        if not all((*sections, last)) or len(path) > 200:
            raise ConfigError([(path[:200], "is not a path of the configuration", EXAMPLE)])
        section = changed
        for name in sections:
            if section.get(name) is None:
                section[name] = {}
            elif name == "layer" and isinstance(section[name], str):
                section[name] = {"name": section[name]}  # a layer without options may be written as its name
            section = section[name]
            if not isinstance(section, dict):
                raise ConfigError([(path, f"{name!r} is a value and has no fields", EXAMPLE)])
        section[last] = copy.deepcopy(value)
    return changed


def value_at(config: Any, path: str) -> Any:
    """The value at this dotted path; None if the path does not exist."""
    for name in path.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def leaves(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every value of a decoded configuration, by dotted path."""
    found: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        found |= leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found
