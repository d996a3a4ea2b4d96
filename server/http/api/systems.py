"""The layers that a model can have."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.http.schemas.systems import SystemList
from server.http.systems import systems, width

router = APIRouter(prefix="/api/systems", tags=["figures"])


def system_list() -> dict[str, Any]:
    """SystemList."""
    return {"d_model": width(), "systems": systems()}


@router.get("", response_model=SystemList)
def index() -> Any:
    """Every layer: its equation, the maps that it can have, where its eigenvalues start, its size, a small run of it."""
    return system_list()
