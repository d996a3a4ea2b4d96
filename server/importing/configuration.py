"""Makes the configuration of a run storable: one value that the server would refuse does not take the others along."""

from __future__ import annotations

import json
import math
from typing import Any

from server.importing.found_run import FoundRun
from stablessm_core.telemetry.free_json import MAX_DEPTH, MAX_INTEGER, MAX_JSON_BYTES, MAX_KEY, UNSTORABLE
from stablessm_core.telemetry.nonfinite import json_safe

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def storable(run: FoundRun) -> dict[str, Any]:
    """The run's configuration as the server takes it. The run remarks on what is stored as text, cut off or left out."""
    config: dict[str, Any] = {}
    for name, value in run.config.items():
        config[_text(str(name))[:MAX_KEY]] = _value(run, str(name), value, MAX_DEPTH - 1)
    sizes = {name: len(json.dumps({name: value}, ensure_ascii=False).encode()) for name, value in config.items()}
    for name in sorted(sizes, key=lambda one: sizes[one], reverse=True):
        if sum(sizes.values()) <= MAX_JSON_BYTES:
            break
        run.remarks.append(
            f"config.{name} has {sizes.pop(name):,} bytes and is left out; a configuration has at most {MAX_JSON_BYTES:,}"
        )
        del config[name]
    return config


def _value(run: FoundRun, place: str, value: Any, depth: int) -> Any:
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        run.remarks.append(f"config.{place[:60]} is a whole number of more than 63 bits and is stored as text")
        return str(value) if value.bit_length() < 10_000 else hex(value)
    if isinstance(value, dict | list | tuple) and depth <= 1:
        run.remarks.append(f"config.{place[:60]} has more than {MAX_DEPTH} levels; the deepest are stored as text")
        return _text(json.dumps(json_safe(value), default=str))
    if isinstance(value, dict):
        return {_text(str(k))[:MAX_KEY]: _value(run, f"{place}.{k}", one, depth - 1) for k, one in value.items()}
    if isinstance(value, list | tuple):
        return [_value(run, place, one, depth - 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return json_safe(value)
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    """The text without characters that no database stores."""
    return UNSTORABLE.sub(REPLACEMENT, text)
