"""Every reader of the core either parses arbitrary bytes or raises its own error, within bounded memory."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.data import mnist_idx as idx
from stablessm_core.spec.data.files import DataError
from stablessm_core.spec.data.text import load_text
from stablessm_core.spec.errors import ConfigError
from stablessm_core.telemetry.blocks import decode, encode
from stablessm_core.training.checkpoint import CheckpointError, load_checkpoint

pytestmark = pytest.mark.slow

T = TypeVar("T")

fuzzed = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def outcome(read: Callable[[], T], refusal: type[Exception]) -> tuple[T | None, str]:
    """(parsed value, "") or (None, reason of the refusal). Any other exception propagates and fails the test."""
    try:
        return read(), ""
    except refusal as error:
        return None, str(error)


shapes = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(tuple)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes of `whole`, some of which may be changed, removed, inserted or repeated."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        piece = draw(st.binary(max_size=6))
        cut = draw(st.integers(0, 6))
        data[at : at + cut] = piece
    return bytes(data)


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[np.float32]:
    """Arrays of arbitrary float32 bit patterns, including NaNs with payloads."""
    shape = draw(shapes)
    size = int(np.prod(shape))
    return np.frombuffer(draw(st.binary(min_size=4 * size, max_size=4 * size)), np.float32).reshape(shape)


@fuzzed
@given(values=arrays())
def test_any_bit_pattern_survives_encoding_and_decoding(values: NDArray[np.float32]) -> None:
    back = decode(encode(values), values.shape)
    assert back.tobytes() == values.tobytes()


@fuzzed
@given(data=st.data(), values=arrays(), shape=shapes)
def test_a_damaged_payload_is_refused_or_decodes_to_its_shape(
    data: st.DataObject, values: NDArray[np.float32], shape: tuple[int, ...]
) -> None:
    payload = data.draw(damaged(encode(values)) | st.binary(max_size=200))
    found, why = outcome(lambda: decode(payload, shape), ValueError)
    assert why.startswith("block ") if found is None else (found.shape, found.dtype) == (shape, np.float32)


def idx_file(content: bytes, *shape: int) -> bytes:
    return struct.pack(f">{1 + len(shape)}I", 2048 + len(shape), *shape) + content


@fuzzed
@given(data=st.data(), packed=st.booleans(), magic=st.sampled_from([idx.IMAGES, idx.LABELS]))
def test_any_idx_file_is_read_or_refused_with_an_error_that_names_its_path(
    tmp_path: Path, data: st.DataObject, packed: bool, magic: int
) -> None:
    shape = (3, 2, 2) if magic == idx.IMAGES else (12,)
    whole = idx_file(bytes(range(12)), *shape)
    content = data.draw(damaged(whole) | st.binary(max_size=64))
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(data.draw(damaged(gzip.compress(content, mtime=0))) if packed else content)
    found, why = outcome(lambda: idx.read_idx(path, magic=magic), DataError)
    assert str(path) in why if found is None else (found.dtype, found.ndim) == (np.uint8, len(shape))


@fuzzed
@given(content=st.binary(max_size=300), suffix=st.sampled_from(["txt", "txt.gz", "txt.xz"]))
def test_any_text_file_is_read_or_refused_with_an_error_that_names_its_path(tmp_path: Path, content: bytes, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    text, why = outcome(lambda: load_text(path), DataError)
    assert str(path) in why if text is None else suffix != "txt" or len(text.ids) == len(content.decode("utf-8-sig"))


@fuzzed
@given(data=st.data())
def test_any_damaged_checkpoint_is_refused_with_an_error_that_names_its_path(tmp_path: Path, data: st.DataObject) -> None:
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"stablessm": "{}"}}
    ).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(8)
    path = tmp_path / "step-1.safetensors"
    path.write_bytes(data.draw(damaged(whole) | st.binary(max_size=100)))
    with pytest.raises(CheckpointError, match="step-1"):
        load_checkpoint(path)


NAMES = [*sorted(RunConfig.model_json_schema()["properties"]), "name", "lr", "steps", "d_state", "a", "x"]
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=30)
    | st.sampled_from(["best", "mnist", "stable_ssm"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=5),
    max_leaves=15,
)


@fuzzed
@given(data=st.dictionaries(st.sampled_from(NAMES), anything, max_size=5))
def test_any_configuration_is_accepted_or_refused_with_an_error_that_names_the_field(data: dict[str, object]) -> None:
    config, why = outcome(lambda: parse_config(data), ConfigError)
    assert why if config is None else parse_config(json.loads(config.model_dump_json())) == config


def test_the_fuzz_tests_reach_both_acceptance_and_refusal(tmp_path: Path) -> None:
    """A fuzzer whose bytes are all refused, or all accepted, would prove nothing."""
    outcomes: dict[str, set[bool]] = {"block": set(), "idx": set()}
    readers: dict[str, tuple[bytes, Callable[[bytes], object]]] = {
        "block": (encode(np.ones((3, 4), np.float32)), lambda b: decode(b, (3, 4))),
        "idx": (
            idx_file(bytes(12), 12),
            lambda b: (tmp_path / "x").write_bytes(b) and idx.read_idx(tmp_path / "x", magic=idx.LABELS),
        ),
    }

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(data=st.data(), name=st.sampled_from(sorted(readers)))
    def explore(data: st.DataObject, name: str) -> None:
        whole, read = readers[name]
        try:
            read(data.draw(damaged(whole)))
            outcomes[name].add(True)
        except ValueError:
            outcomes[name].add(False)

    explore()
    assert all(found == {True, False} for found in outcomes.values()), outcomes
