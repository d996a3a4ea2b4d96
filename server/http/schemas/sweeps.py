"""The JSON of sweeps (grids of runs from one base configuration) in requests and responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

from server.compare.sweeps import MAX_LIMIT
from server.http.schemas.compare import EXAMPLE_CLAIM, EXAMPLE_COUNTS, EXAMPLE_SPREAD, ClaimAnswer, Counted
from server.http.schemas.queues import QueueBody
from server.http.schemas.runs import MAX_ID, PROJECT, Answer, Project, RunAnswer
from server.lifecycle.sweep_submission import MAX_GRID_RUNS
from stablessm_core.spec.config import Name
from stablessm_core.spec.search import MAX_TRIALS, Search
from stablessm_core.spec.section import Section

SweepId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the sweep.", examples=[1])]
TableFormat = Literal["json", "csv", "parquet", "markdown", "latex"]
EXAMPLE_GRID: dict[str, Any] = {"model.reparameterization.name": ["direct", "best"], "optimizer.lr": [0.01, 0.3]}
EXAMPLE_BASE: dict[str, Any] = {"task": {"name": "polynomial_memory"}, "train": {"steps": 500}}
EXAMPLE_SWEEP: dict[str, Any] = {
    "id": 1,
    "url": "/sweeps/1",
    "name": "maps by learning rate",
    "base": EXAMPLE_BASE,
    "grid": EXAMPLE_GRID,
    "search": None,
    "created_at": 1763712000.0,
    "submitted_by": 3,
    "user": "ada",
    "project": "hybrid",
    "statuses": {"diverged": 1, "finished": 3},
    "finite": 3,
    "stable": 2,
    "unstable": 1,
    "lost": 1,
    "open": 0,
    "total": 4,
    "running": 0,
    "eta_seconds": None,
}
EXAMPLE_SEARCH: dict[str, Any] = {
    "trials": 50,
    "seed": 0,
    "space": {
        "optimizer.lr": {"distribution": "log_uniform", "low": 1e-4, "high": 0.1},
        "model.reparameterization.name": {"distribution": "choice", "values": ["exp", "best"]},
    },
    "halving": {"metric": "train/loss", "first_rung": 100, "factor": 3},
}
EXAMPLE_GRID_ANSWER: dict[str, Any] = {
    "sweep_id": 1,
    "axes": ["optimizer.lr"],
    "rows": {"path": None, "values": [None]},
    "columns": {"path": "optimizer.lr", "values": [0.01]},
    "cells": [[{"outcome": "lost", **EXAMPLE_COUNTS, "loss": EXAMPLE_SPREAD, "runs": [1, 2, 3]}]],
    "statuses": {"finished": 2, "diverged": 1},
    **EXAMPLE_COUNTS,
}
EXAMPLE_TABLE: dict[str, Any] = {
    "sweep_id": 1,
    "name": "maps by learning rate",
    "columns": [
        {"name": "run", "kind": "integer", "meaning": "number of the run", "metric": False},
        {"name": "optimizer.lr", "kind": "number", "meaning": "setting of the run", "metric": False},
        {"name": "train_loss", "kind": "number", "meaning": "train_loss at the end", "metric": True},
    ],
    "rows": [
        {"run": 1, "optimizer.lr": 0.01, "train_loss": 0.0021},
        {"run": 2, "optimizer.lr": 0.3, "train_loss": "NaN"},
    ],
    "statuses": {"diverged": 1, "finished": 1},
    "claims": [EXAMPLE_CLAIM],
    "finite": 1,
    "stable": 1,
    "unstable": 0,
    "lost": 1,
    "open": 0,
    "total": 2,
}


class SweepRequest(QueueBody):
    """Settings to vary over a base configuration: a grid, whose every combination becomes a run, or a search, whose every trial
    becomes a run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"name": "maps by learning rate", "base": EXAMPLE_BASE, "grid": EXAMPLE_GRID},
                {"name": "learning rates", "base": EXAMPLE_BASE, "search": EXAMPLE_SEARCH},
            ]
        }
    )
    name: Name | None = Field(None, description="Name of the sweep, by default the name in its base configuration.")
    project: Project = Field("", description=PROJECT)
    base: dict[str, Any] = Field(description="Run configuration. Omitted fields have their defaults.")
    grid: Annotated[dict[str, list[Any]], Field(min_length=1, max_length=10)] | None = Field(
        None,
        description=f"Values by dotted path; at most {MAX_GRID_RUNS:,} combinations. Exactly one of grid and search is needed.",
    )
    search: Search | None = Field(None, description=f"Random trials instead of a grid; at most {MAX_TRIALS:,}.")


class SweepPatch(Section):
    """The settings of a sweep that can be changed. Omitted fields do not change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "maps by learning rate"}]})
    name: Name | None = Field(None, description="null for the name in its base configuration.")


class SweepSummary(Counted):
    """A sweep, and how its runs ended."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE_SWEEP]})
    id: int
    url: str = Field(description="The sweep's page.")
    name: str | None = Field(description="Its name, else the name in its base configuration; null if there is neither.")
    base: dict[str, Any]
    grid: dict[str, list[Any]] = Field(
        description="Values by dotted path. In a search, settings that are drawn from a range have an empty list."
    )
    search: dict[str, Any] | None = Field(description="The search, with its defaults; null for a grid.")
    created_at: float
    submitted_by: int | None = Field(description="Number of the token that submitted it; null for the token of the settings.")
    user: str | None = Field(description="Name of the user who submitted it; null if all its runs were deleted.")
    project: str = Field(description="The project of its first run; empty for none.")
    statuses: dict[str, int] = Field(description="How many runs have each status.")
    running: int = Field(description="How many lanes train its runs now.")
    eta_seconds: float | None = Field(
        description="Seconds until its last run ends, if its open runs take as long per step as its ended runs took and it keeps "
        "its lanes; null if none of its runs trains, or if none has ended."
    )


class Decision(Answer):
    """Whether a trial continued after a rung, and why."""

    run_id: int
    rung: int = Field(description="1 for the first rung. One more than the number of rungs: after the last rung.")
    step: int = Field(description="The step of the rung, or the step at which the trial became unstable.")
    value: float | None = Field(description="The metric at the rung; null if it was not finite.")
    outcome: Literal["continued", "behind", "unstable"]
    reason: str
    at: float


class SweepAnswer(SweepSummary):
    """A sweep with all its runs. In a search with successive halving, also the decisions on its trials, by rung."""

    decisions: list[Decision]
    runs: list[RunAnswer]


class SweepList(Answer):
    sweeps: list[SweepSummary]
    next_cursor: int | None = Field(description="Send it as `cursor` to get the next page; null on the last page.")


class SweepQuery(BaseModel):
    """The filter and the page of a list of sweeps."""

    q: str = Field("", max_length=200, description="Part of the name, in any letter case.")
    project: str = Field("", max_length=200, description="Only sweeps with runs of this project.")
    cursor: int | None = Field(None, ge=1, le=MAX_ID, description="`next_cursor` of the previous page.")
    limit: int = Field(50, ge=1, le=MAX_LIMIT)


class TableColumn(Answer):
    name: str
    kind: Literal["integer", "number", "flag", "text"]
    meaning: str
    metric: bool = Field(description="True if groups have its median, quartiles, minimum, maximum, mean and standard deviation.")


class SweepTable(Counted):
    """The runs of a sweep, or groups of these runs, with their settings and results."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE_TABLE]})
    sweep_id: int
    name: str | None
    columns: list[TableColumn]
    rows: list[dict[str, Any]] = Field(description="One value per column; null if the run has no such value.")
    statuses: dict[str, int]
    claims: list[ClaimAnswer] = Field(description="Which layer or map does better, as in `GET /api/compare`.")


class GridAxis(Answer):
    path: str | None = Field(description="The setting that varies along this axis; null if the sweep varies too few settings.")
    values: list[Any]


class GridCell(Counted):
    outcome: str = Field(description="The worst outcome of its runs: lost, open, unstable, unknown or stable.")
    unknown: int = Field(description="Finite runs whose final eigenvalues are not known.")
    loss: dict[str, float | None] = Field(description="Median, quartiles, min, max, mean and std over the finite runs.")
    runs: list[int]


class SweepGrid(Counted):
    """How the runs of a sweep ended, as a grid over two of the settings that the sweep varies."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE_GRID_ANSWER]})
    sweep_id: int
    axes: list[str] = Field(description="Every setting that the sweep varies.")
    rows: GridAxis
    columns: GridAxis
    cells: list[list[GridCell]] = Field(description="By row, then by column.")
    statuses: dict[str, int]
    unknown: int
