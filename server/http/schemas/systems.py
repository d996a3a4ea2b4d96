"""What the API answers about the layers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from server.http.schemas.runs import Answer

EXAMPLE: dict[str, Any] = {
    "name": "lru",
    "title": "LRU",
    "equation": "h_t = f(w) e^{i e^θ} h_{t-1} + γ B x_t,  y_t = Re(C h_t) + D x_t",
    "source": "Linear recurrent unit, arXiv 2303.06349",
    "given_by": "weight",
    "native": {"name": "exp", "time": "discrete"},
    "maps": [{"name": "exp", "time": "discrete", "b": None}, {"name": "best", "time": "discrete", "b": None}],
    "eigenvalues": 64,
    "parameters": 24960,
    "start": {"distance": [0.01518, 0.158], "phase": [2.411, -0.307], "nearest": 0.00076, "farthest": 0.9332},
    "gradient_over_weight": [{"map": "exp", "min": 0.2085, "median": 3.215, "max": 183.2, "finite": 64, "total": 64}],
    "run": {"task": {"name": "polynomial_memory"}, "model": {"layer": "lru", "d_model": 16}},
    "form_url": "/new?layer=lru",
}


class NativeMap(Answer):
    name: str
    time: Literal["continuous", "discrete"]


class MapChoice(NativeMap):
    b: float | None = Field(description="Of `best`, where its default does not reach the eigenvalues that the layer starts with.")


class Start(Answer):
    """Where eigenvalues are before the first step: at most 160 of them, seed 0, in layers with a gate for random input."""

    distance: list[float] = Field(description="1 - |lambda_bar| of each.")
    phase: list[float] | None = Field(description="Angles of complex ones, of conjugate pairs one; null where all are real.")
    nearest: float
    farthest: float


class Ratio(Answer):
    """G_f(w) / |w| at the layer's initial eigenvalues: up to a constant the bound of |dLoss/dw| / |w|."""

    map: str
    min: float | None
    median: float | None
    max: float | None
    finite: int = Field(description="Of `total`; it is infinite at a weight of 0.")
    total: int


class SystemAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    name: str
    title: str
    equation: str
    source: str
    given_by: Literal["weight", "weights", "fixed", "input"] = Field(
        description="What decides the eigenvalues: a weight each, through a map; all weights together; nothing that is trained; "
        "or the layer's input."
    )
    native: NativeMap | None = Field(description="The map that the layer was published with; null where it has none.")
    maps: list[MapChoice] = Field(description="Every map that it can have.")
    eigenvalues: int = Field(description="Recorded of one layer.")
    parameters: int = Field(description="Of one layer.")
    start: Start | None
    gradient_over_weight: list[Ratio] = Field(description="Of the native map and of `best`.")
    run: dict[str, Any] = Field(description="Configuration of a small run, as `POST /api/runs` takes it.")
    form_url: str = Field(description="The form for a new run, filled in with it.")


class SystemList(Answer):
    d_model: int = Field(description="Width at which eigenvalues and parameters are counted.")
    systems: list[SystemAnswer]
