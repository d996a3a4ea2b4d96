"""The JSON of the layers that a model can have."""

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
    b: float | None = Field(
        description="The constant b of `best`, if its default does not reach the layer's initial eigenvalues."
    )


class Start(Answer):
    """The initial eigenvalues for seed 0, at most 160. For layers with a gate, they are computed from random input."""

    distance: list[float] = Field(description="1 - |lambda_bar| of each eigenvalue.")
    phase: list[float] | None = Field(description="Angles of complex eigenvalues, one per conjugate pair; null if all are real.")
    nearest: float
    farthest: float


class Ratio(Answer):
    """G_f(w) / |w| at the layer's initial eigenvalues, which is an upper bound of |dLoss/dw| / |w| up to a constant."""

    map: str
    min: float | None
    median: float | None
    max: float | None
    finite: int = Field(description="How many of the `total` values are finite; the ratio is infinite at a weight of 0.")
    total: int


class SystemAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    name: str
    title: str
    equation: str
    source: str
    given_by: Literal["weight", "weights", "fixed", "input"] = Field(
        description="What determines the eigenvalues: one weight each, through a map; all weights together; nothing trainable; "
        "or the layer's input."
    )
    native: NativeMap | None = Field(description="The map that the layer was published with; null if it has none.")
    maps: list[MapChoice] = Field(description="Every map that the layer can have.")
    eigenvalues: int = Field(description="Number of recorded eigenvalues of one layer.")
    parameters: int = Field(description="Number of parameters of one layer.")
    start: Start | None
    gradient_over_weight: list[Ratio] = Field(description="For the native map and for `best`.")
    run: dict[str, Any] = Field(description="Configuration of a small run, as `POST /api/runs` accepts it.")
    form_url: str = Field(description="Address of the form for a new run, filled in with this run.")


class SystemList(Answer):
    d_model: int = Field(description="The width for which eigenvalues and parameters are counted.")
    systems: list[SystemAnswer]
