"""Checks the options of a run. A wrong argument raises at once, and the message names it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from stablessm_core.outside.configuration import storable_config
from stablessm_core.outside.options import DEFAULTS, RunOptions
from stablessm_core.telemetry.limits import MAX_NOTES, MAX_RUN_NAME, MAX_TAG, MAX_TAGS

if TYPE_CHECKING:
    from typing import Unpack

Mode = Literal["online", "offline", "disabled"]
MODES = ("online", "offline", "disabled")
RESUMES = ("never", "allow", "must")
DEFAULT_DIR = "stablessm-runs"


@dataclass(frozen=True)
class Arguments:
    """The checked arguments of a run, with the environment's values for those that were not given.

    id_given: False if the id is new and random. told: sentences about entries of config that are not stored as they were given.
    """

    project: str
    name: str | None
    config: dict[str, Any]
    tags: list[str]
    notes: str
    id: str
    id_given: bool
    resume: str
    from_step: int | None
    total_steps: int | None
    length: int | None
    mode: Mode
    dir: Path
    every: int
    url: str | None
    token: str | None
    told: tuple[str, ...] = ()


def check_arguments(*, every: int = 1, strict_config: bool = True, **options: Unpack[RunOptions]) -> Arguments:
    """The checked options. Raises TypeError or ValueError, which name the argument, what was given and what is allowed.

    strict_config: False stores what it can of a configuration that the server would refuse; `Arguments.told` names the rest.
    """
    if unknown := options.keys() - RunOptions.__annotations__.keys():
        raise TypeError(f"{min(unknown)} is no argument; allowed: {', '.join(RunOptions.__annotations__)}")
    given: dict[str, Any] = {**dict.fromkeys(RunOptions.__annotations__), **DEFAULTS, **options}
    id, resume, from_step, mode = given["id"], given["resume"], given["from_step"], given["mode"]
    found_url = _text("url", given["url"]) or os.environ.get("STABLESSM_URL") or None
    if found_url is not None and (urlsplit(found_url).scheme not in ("http", "https") or not urlsplit(found_url).hostname):
        raise ValueError(f"url is {found_url!r}; an address such as http://127.0.0.1:8000 is needed")
    found_mode: Any = _text("mode", mode) or os.environ.get("STABLESSM_MODE") or ("online" if found_url else "offline")
    if found_mode not in MODES:
        raise ValueError(f"mode is {found_mode!r}; allowed: {', '.join(MODES)}")
    if found_mode == "online" and found_url is None:
        raise ValueError("mode is 'online', but url is None and STABLESSM_URL is not set")
    if resume not in RESUMES:
        raise ValueError(f"resume is {resume!r}; allowed: {', '.join(RESUMES)}")
    if resume == "must" and id is None:
        raise ValueError("resume is 'must', but id is None")
    if found_mode == "offline" and resume != "never" and id is not None and from_step is None:
        raise ValueError("from_step is None; offline, a run that continues needs the number of its last step, 0 for a new run")
    project = os.environ.get("STABLESSM_PROJECT") if given["project"] is None else given["project"]
    where = os.environ.get("STABLESSM_DIR") or DEFAULT_DIR if given["dir"] is None else given["dir"]
    if not isinstance(where, str | os.PathLike):
        raise TypeError(f"dir is {where!r}; a path is needed")
    config, told = storable_config(given["config"], strict=strict_config)
    return Arguments(
        project=_short("project", project) or "",
        name=_short("name", given["name"]) or None,
        config=config,
        tags=_tags(given["tags"]),
        notes=_notes(given["notes"]),
        id=str(uuid.uuid4()) if id is None else _uuid(id),
        id_given=id is not None,
        resume=resume,
        from_step=None if from_step is None else _count("from_step", from_step, 0),
        total_steps=None if given["total_steps"] is None else _count("total_steps", given["total_steps"], 1),
        length=None if given["length"] is None else _count("length", given["length"], 1),
        mode=found_mode,
        dir=Path(where),
        every=_count("every", every, 1),
        url=found_url,
        token=_text("token", given["token"]) or os.environ.get("STABLESSM_TOKEN") or None,
        told=tuple(told),
    )


def _text(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; a text or None is needed")
    return value


def _short(name: str, value: Any) -> str | None:
    found = _text(name, value)
    if found is not None and (len(found) > MAX_RUN_NAME or not (found == "" or found.isprintable())):
        raise ValueError(f"{name} is {found[:40]!r}...; at most {MAX_RUN_NAME} printable characters are allowed")
    return found


def _notes(notes: Any) -> str:
    found = _text("notes", notes) or ""
    if len(found) > MAX_NOTES:
        raise ValueError(f"notes has {len(found):,} characters; at most {MAX_NOTES:,} are allowed")
    return found


def _tags(tags: Any) -> list[str]:
    if tags is None:
        return []
    if isinstance(tags, str) or not isinstance(tags, Sequence) or not all(isinstance(tag, str) for tag in tags):
        raise TypeError(f"tags is {tags!r}; a list of texts is needed")
    if len(tags) > MAX_TAGS:
        raise ValueError(f"tags has {len(tags)} entries; at most {MAX_TAGS} are allowed")
    if wrong := [tag for tag in tags if not 1 <= len(tag) <= MAX_TAG]:
        raise ValueError(f"tags has {wrong[0][:60]!r}; tags have 1 to {MAX_TAG} characters")
    return list(tags)


def _uuid(value: Any) -> str:
    try:
        return str(uuid.UUID(value))
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"id is {value!r}; a UUID such as {uuid.uuid4()} is needed") from None


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; a whole number is needed")
    if not least <= value < 2**53:
        raise ValueError(f"{name} is {value}; at least {least} is needed")
    return value
