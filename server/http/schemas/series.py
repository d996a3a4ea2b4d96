"""What the API answers about recorded numbers: a run's catalogue, its series in JSON or as typed arrays."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from server.http.schemas.runs import EXAMPLE_FORM, Answer
from stablessm_core.nonfinite import Spelling

EXAMPLE_TYPED = {"dtype": "f8", "bdata": "AAAAAAAA8D8AAAAAAAAAQA=="}


class SeriesInfo(Answer):
    """One entry of a run's catalogue."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "ssm/0/grad_over_weight",
                    "width": 64,
                    "unit": "",
                    "meaning": "|dL/dw| / |w| of each eigenvalue's weight w.",
                    "derived": False,
                    "form": EXAMPLE_FORM,
                    "first_step": 1,
                    "last_step": 412,
                    "points": 412,
                }
            ]
        }
    )
    name: str
    width: int
    unit: str
    meaning: str
    derived: bool
    form: dict[str, Any] | None = Field(
        description="Of a layer's series: how its eigenvalues follow from its weights, by map, time and constants."
    )
    first_step: int | None
    last_step: int | None
    points: int


class RecordInfo(Answer):
    """What is watched of a layer: its eigenvalues, or further weights of it."""

    id: str = Field(description="What its series are called by, ssm/{id}/...: the layer's number, or 0.dt_bias.")
    layer: int
    name: str = Field(description="What the layer is, such as mamba.")
    eigenvalues: int | None
    form: dict[str, Any] | None
    kinds: list[str] = Field(description="Its series; none of a run that has not begun.")
    gates: int | None = Field(description="How many gates or step sizes its eigenvalues share; null without a gate.")


class Catalogue(Answer):
    run_id: int
    seq: int
    records: list[RecordInfo]
    series: list[SeriesInfo]


Number = float | Spelling
EXAMPLE_SERIES: dict[str, Any] = {"name": "train/loss", "width": 1, "unit": "", "step": [1, 2, 3], "value": [0.91, 0.84, "NaN"]}


class TypedArray(Answer):
    """Little-endian numbers in base64, as Plotly takes them; `shape` "rows, columns" for two dimensions."""

    dtype: Literal["f4", "f8", "i4"]
    bdata: str
    shape: str | None = None


Numbers = list[Number] | list[list[Number]] | TypedArray | None


class SeriesAnswer(Answer):
    """Raw points (`value`), or, beyond `max_points`, buckets (`min`, `max`, `last`, `nonfinite`) from `step` on.

    `seq`: the run's last event that is in these numbers; a live stream goes on after it.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SERIES]})
    name: str
    width: int
    unit: str
    seq: int | None = None
    last_step: int | None = Field(None, description="The last step covered, where a bucket ends after it begins.")
    eigenvalues: list[int] | None = Field(None, description="The columns, where they were chosen.")
    step: list[int] | TypedArray
    value: Numbers = None
    min: Numbers = None
    max: Numbers = None
    last: Numbers = None
    nonfinite: list[int] | list[list[int]] | TypedArray | None = None
