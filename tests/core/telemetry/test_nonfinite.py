"""Non-finite numbers, and arrays inside JSON, survive a round trip."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stablessm_core.telemetry import typed_arrays
from stablessm_core.telemetry.nonfinite import NONFINITE, as_text, json_safe, spelling


@given(st.floats())
def test_the_text_of_a_number_is_read_back_as_the_same_number(value: float) -> None:
    back = float(as_text(value))
    assert (math.isnan(back) and math.isnan(value)) or (back == value and math.copysign(1, back) == math.copysign(1, value))
    assert (spelling(value) is None) == math.isfinite(value)


def test_only_non_finite_numbers_become_words_at_any_depth_of_a_document() -> None:
    given_value = {"a": [1, float("nan"), (float("inf"), {"b": -float("inf")})], 7: "NaN", "c": None, "d": 0.1 + 0.2}
    safe = json_safe(given_value)
    assert safe == {"a": [1, "NaN", ["Infinity", {"b": "-Infinity"}]], "7": "NaN", "c": None, "d": 0.1 + 0.2}
    assert json.loads(json.dumps(safe, allow_nan=False)) == safe
    assert [as_text(float(word)) for word in NONFINITE] == list(NONFINITE)


@given(st.sampled_from(["f4", "f8"]).flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(max_dims=2, min_side=0))))
@pytest.mark.slow
def test_typed_arrays_survive_encoding_bit_for_bit(values: np.ndarray) -> None:
    back = typed_arrays.decode(json.loads(json.dumps(typed_arrays.encode(values))))
    assert (back.shape, back.tobytes()) == (values.shape, np.ascontiguousarray(values).tobytes())


def test_typed_arrays_are_decoded_inside_a_figure_and_steps_are_sent_as_float64() -> None:
    step = np.array([1, 2**53 - 1])
    figure: dict[str, Any] = {"data": [{"x": typed_arrays.encode(step), "name": "loss"}], "layout": {}}
    decoded = typed_arrays.decode_all(figure)
    np.testing.assert_array_equal(decoded["data"][0].pop("x"), step.astype(np.float64), strict=True)
    assert decoded == {"data": [{"name": "loss"}], "layout": {}}


def test_an_array_of_an_unsupported_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float16; allowed: float32"):
        typed_arrays.encode(np.zeros(2, np.float16))
