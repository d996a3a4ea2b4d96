"""The JSON of the factors that determine how far each training step moves an eigenvalue."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from server.http.schemas.runs import EXAMPLE_FORM, Answer
from server.http.schemas.series import Number

Rows = list[list[Number]]


class StepsAnswer(Answer):
    """How far each training step moves some eigenvalues, with the factors of each move. Each field has one list per step, with
    one number per eigenvalue.

    relative_step is approximately slope * lr * gradient * normalisation.
    """

    model_config = ConfigDict(
        ser_json_inf_nan="strings",
        json_schema_extra={
            "examples": [
                {
                    "run_id": 1,
                    "layer": 0,
                    "record": "0",
                    "eigenvalues": [9],
                    "form": EXAMPLE_FORM | {"length": 100},
                    "step": [1],
                    "eigenvalue": [[0.99]],
                    "distance": [[0.01]],
                    "relative_step": [[13.0]],
                    "first_order": [[13.0]],
                    "slope": [[100.0]],
                    "weight_step": [[0.13]],
                    "gradient": [[0.02]],
                    "lr": [[0.13]],
                    "normalisation": [[50.0]],
                    "overflow_budget": [[-0.011]],
                }
            ]
        },
    )
    run_id: int
    layer: int
    record: str = Field(description="The requested record of the layer.")
    eigenvalues: list[int]
    form: dict[str, Any]
    step: list[int] = Field(description="The requested steps for which the next step is also recorded.")
    eigenvalue: Rows = Field([], description="lambda_bar before the step.")
    distance: Rows = Field([], description="1 - |lambda_bar| before the step.")
    relative_step: Rows = Field([], description="|change of lambda_bar| / distance.")
    first_order: Rows = Field([], description="slope * weight_step, the relative step to first order.")
    slope: Rows = Field([], description="R_f(w), the factor of the map: relative step per weight step.")
    weight_step: Rows = Field([], description="|change of w|.")
    gradient: Rows = Field([], description="|dL/dw|, before clipping.")
    lr: Rows = Field([], description="Learning rate of the recurrent weights.")
    normalisation: Rows = Field(
        [], description="weight_step / (lr * gradient): the factor of the optimizer; NaN without a gradient."
    )
    overflow_budget: Rows = Field([], description="The overflow budget before the step, at the layer's sequence length.")
