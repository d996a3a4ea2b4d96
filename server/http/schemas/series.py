"""The JSON of recorded values: a run's catalogue, and its series as lists of numbers or typed arrays."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from server.http.schemas.runs import EXAMPLE_FORM, Answer
from stablessm_core.telemetry.nonfinite import Spelling

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
        description="For a layer's series, how its eigenvalues follow from its weights: map, time and constants. Otherwise null."
    )
    first_step: int | None
    last_step: int | None
    points: int


class RecordInfo(Answer):
    """A recorded group of a layer's weights: the weights of its eigenvalues, or other watched weights."""

    id: str = Field(description="The id in the names of its series, ssm/{id}/...: the layer's number, or for example 0.dt_bias.")
    layer: int
    name: str = Field(description="Name of the layer, such as mamba.")
    eigenvalues: int | None
    form: dict[str, Any] | None
    kinds: list[str] = Field(description="Its series; empty before the run starts.")
    gates: int | None = Field(description="Number of gates or step sizes that its eigenvalues share; null without a gate.")
    module: str | None = Field(description="The class of the module, if another program trains the run.")
    note: str | None = Field(description="What that program says about the layer, such as `at gate zero`.")


class Catalogue(Answer):
    run_id: int
    seq: int
    records: list[RecordInfo]
    series: list[SeriesInfo]


class Metric(Answer):
    """A free metric. group: the name up to its first slash, by which pages group metrics; "" if it has none."""

    name: str
    group: str
    last: float | Spelling | None = Field(description="Its newest value.")


class Metrics(Answer):
    run_id: int
    seq: int
    metrics: list[Metric]


Number = float | Spelling
EXAMPLE_SERIES: dict[str, Any] = {"name": "train/loss", "width": 1, "unit": "", "step": [1, 2, 3], "value": [0.91, 0.84, "NaN"]}


class TypedArray(Answer):
    """Little-endian numbers in base64, as Plotly reads them. `shape` is "rows, columns" for two dimensions."""

    dtype: Literal["f4", "f8", "i4"]
    bdata: str
    shape: str | None = None


Numbers = list[Number] | list[list[Number]] | TypedArray | None


class SeriesAnswer(Answer):
    """Raw points (`step`, `value`). A series with more than `max_points` points is returned as buckets instead (`min`, `max`,
    `last`, `nonfinite`), and `step` is then the first step of each bucket.

    `seq`: the number of the newest event that these values include; a live stream continues after that event.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SERIES]})
    name: str
    width: int
    unit: str
    seq: int | None = None
    last_step: int | None = Field(None, description="The last step that the last bucket covers.")
    eigenvalues: list[int] | None = Field(None, description="The eigenvalue of each column, if eigenvalues were selected.")
    step: list[int] | TypedArray
    value: Numbers = None
    min: Numbers = None
    max: Numbers = None
    last: Numbers = None
    nonfinite: list[int] | list[list[int]] | TypedArray | None = None
