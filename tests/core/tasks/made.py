"""Tasks as a run makes them, from a configuration."""

from __future__ import annotations

from pathlib import Path

from stablessm_core.config import parse_config
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.loading import get_task


def made(name: str, root: Path = Path("nowhere"), **options: object) -> Task:
    return get_task(parse_config({"task": {"name": name} | options}).task, root)
