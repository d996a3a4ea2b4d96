"""The layers that a model can have."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.http.schemas.systems import SystemList
from stablessm_core.theory.systems import systems, width

router = APIRouter(prefix="/api/systems", tags=["figures"])


def systems_json() -> dict[str, Any]:
    """The SystemList of all layers."""
    return {"d_model": width(), "systems": systems()}


@router.get("", response_model=SystemList)
def index() -> Any:
    """Every layer: equation, possible maps, initial eigenvalues, number of parameters, and the configuration of a small
    example run."""
    return systems_json()
