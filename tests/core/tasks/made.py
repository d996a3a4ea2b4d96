"""Builds tasks from a configuration in the same way as a run."""

from __future__ import annotations

from pathlib import Path

from stablessm_core.spec.config import parse_config
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.loading import get_task


def made(name: str, root: Path = Path("nowhere"), **options: object) -> Task:
    return get_task(parse_config({"task": {"name": name} | options}).task, root)
