"""The overview says of every bucket what the series themselves say, however it was read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from server.database.connection import Database
from server.series import overview, reading, zoom
from server.series.heat import HIGHEST, LOWEST, NAN_CODE, NOTHING, heat_codes
from server.series.overview import Overview, read_overview
from server.series.zoom import bucket_bounds, raw_stats
from tests.server.recording import Recording, claimed

RATIO = "ssm/0/grad_over_weight"


def recorded(database: Database, points: int, width: int = 5, map_: str = "best") -> Recording:
    made = Recording(database, claimed(database, model__reparameterization__name=map_), width=width)
    for _ in range(points // 500):
        made.write(500)
    return made


def shown(database: Database, **options: Any) -> tuple[dict[str, Overview], list[int]]:
    with database.read() as session:
        layout = reading.Layout(session, 1)
        found, lines = read_overview(session, layout, list(layout.series.values()), **{"by": RATIO, "top": 2} | options)
    return {one.name: one for one in found}, lines


def of_series(database: Database, name: str, points: int, **options: Any) -> reading.SeriesData:
    with database.read() as session:
        return reading.read_series(session, 1, name, max_points=points, **options)


@pytest.mark.parametrize(
    ("points", "stretch"), [(100, {}), (30, {"from_step": 700, "to_step": 5600}), (900, {"from_step": 4001})]
)
def test_it_says_what_the_series_say(
    database: Database, points: int, stretch: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    made = recorded(database, 6000)
    found, drawn = shown(database, points=points, lines=[4], top=2, heat=[RATIO], **stretch)
    assert set(found) >= set(made.truth)
    assert 4 in drawn
    assert len(drawn) in (2, 3)
    for name, one in found.items():
        data = of_series(database, name, points, **stretch)
        if one.width == 1:
            for part in ("min", "max", "last", "nonfinite"):
                np.testing.assert_array_equal(one.arrays[part], getattr(data, part)[:, 0])
            continue
        check_summary(one, data, drawn)


def check_summary(one: Overview, data: reading.SeriesData, drawn: list[int]) -> None:
    if data.value is not None:
        finite = np.where(np.isfinite(data.value), data.value, np.nan)
        low, high, last, lost = finite, finite, data.value, (~np.isfinite(data.value)).astype(int)
    else:
        low, high, last, lost = data.min, data.max, data.last, data.nonfinite
    low, high, last = (part.astype(np.float32) for part in (low, high, last))
    arrays = one.arrays
    np.testing.assert_array_equal(arrays["step"], data.step)
    np.testing.assert_array_equal(arrays["low"], np.fmin.reduce(low, axis=1))
    np.testing.assert_array_equal(arrays["high"], np.fmax.reduce(high, axis=1))
    known = np.where(np.isfinite(last), last, np.nan)
    np.testing.assert_allclose(arrays["median"], np.nanmedian(known, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(arrays["lines"], last[:, drawn].T)
    kind = np.where(np.isneginf(last), 2, np.where(np.isposinf(last), 1, np.where(lost > 0, 0, -1)))
    np.testing.assert_array_equal(arrays.get("kinds", np.full(kind.T.shape, -1)), kind.T)
    below = np.unpackbits(arrays["below"], count=low.size, bitorder="little") if "below" in arrays else np.zeros(low.size)
    np.testing.assert_array_equal(below.reshape(low.T.shape), low.T <= 0)
    at = np.arange(len(low))
    np.testing.assert_array_equal(low[at, arrays["low_at"]], arrays["low"])
    np.testing.assert_array_equal(high[at, arrays["high_at"]], arrays["high"])
    np.testing.assert_array_equal(arrays["each_max"], np.fmax.reduce(high, axis=0))
    np.testing.assert_array_equal(high[arrays["max_at"], np.arange(one.width)], arrays["each_max"])
    finite = [column[~np.isnan(column)] for column in known.T]
    np.testing.assert_array_equal(arrays["each_first"], [column[0] for column in finite])
    np.testing.assert_array_equal(arrays["each_last"], [column[-1] for column in finite])
    np.testing.assert_array_equal(arrays["each_end"], last[-1])
    if "heat" not in arrays:
        return
    codes, facts = arrays["heat"], one.facts
    np.testing.assert_array_equal(codes >= NAN_CODE, kind.T >= 0)
    np.testing.assert_array_equal(codes[codes >= NAN_CODE] - NAN_CODE, kind.T[kind.T >= 0])
    shades = (codes >= LOWEST) & (codes <= HIGHEST) & (high.T > 0)
    log = facts["heat_low"] + (codes[shades] - LOWEST) / (HIGHEST - LOWEST) * (facts["heat_high"] - facts["heat_low"])
    step = (facts["heat_high"] - facts["heat_low"]) / (HIGHEST - LOWEST)
    wanted = np.maximum(np.log10(high.T[shades].astype(np.float64)), facts["heat_low"])
    assert np.abs(log - wanted).max() <= step
    assert not (codes == NOTHING)[high.T >= 0].any()


def test_a_short_run_comes_as_it_is(database: Database) -> None:
    made = recorded(database, 500)
    found, _ = shown(database, points=1000)
    assert set(found) >= set(made.truth)
    for name, one in found.items():
        truth = made.truth[name] if name in made.truth else of_series(database, name, 1000).value
        np.testing.assert_array_equal(one.arrays["value"], truth.astype(np.float32))


def test_one_lost_value_among_many_is_seen() -> None:
    """Whatever is pooled: of 300,000 ratios one is no number, and one cell says so."""
    values = np.exp(np.random.default_rng(0).standard_normal((300, 1000))).astype(np.float32)
    values[123, 456] = np.nan
    codes, facts = heat_codes(raw_stats(values), *bucket_bounds(np.ones(1000, np.int64), 100))
    assert codes.shape == (150, 100)
    assert np.argwhere(codes == NAN_CODE).tolist() == [[61, 45]]
    assert facts["heat_rows"][61] == 122


def test_a_block_is_decoded_once_for_all_series(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(sqlite, 6000)
    seen, real = [], zoom.stored_numbers

    def counted(block: Any, *more: Any) -> np.ndarray:
        seen.append((block.group_name, block.level, block.first_step))
        return real(block, *more)

    monkeypatch.setattr(zoom, "stored_numbers", counted)
    shown(sqlite, points=100, heat=[RATIO])
    assert len(seen) == len(set(seen)) > 3


def of_part(database: Database, name: str, part: str) -> np.ndarray:
    values = getattr(of_series(database, name, 50), part)
    assert isinstance(values, np.ndarray)
    return values


def test_a_line_is_drawn_for_each_reason_and_rows_follow_the_decay_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    recorded(database, 2000, width=9, map_="direct")
    found, drawn = shown(database, points=50, top=0, reasons=True, heat=[RATIO], order="end")
    low, last = (of_part(database, "ssm/0/boundary_distance", part) for part in ("min", "last"))
    first = np.nanargmin(low[np.flatnonzero((low < 0).any(axis=1))[0]])
    end = np.where(np.isfinite(last[-1]), last[-1], np.nan).astype(np.float32)
    known = [column[np.isfinite(column)] for column in of_part(database, "ssm/0/eigenvalue", "last").T]
    moved = int(np.argmax([abs(float(column[-1]) - float(column[0])) for column in known]))
    assert drawn == sorted({int(first), int(np.nanargmin(end)), moved})
    assert found[RATIO].arrays["lines"].shape == (len(drawn), 50)
    rows = found[RATIO].facts["heat_rows"]
    assert sorted(rows) == list(range(9))
    assert (np.diff(np.where(np.isnan(end), -np.inf, end)[rows]) <= 0).all(), "the fastest to decay first"
    plain, _ = shown(database, points=50, heat=[RATIO])
    np.testing.assert_array_equal(found[RATIO].arrays["heat"], plain[RATIO].arrays["heat"][rows])


def test_every_eigenvalue_s_buckets_are_those_of_the_series(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    recorded(database, 3000)
    found, _ = shown(database, points=300, each=True)
    data = of_series(database, RATIO, 300)
    for part in ("min", "max", "last", "nonfinite"):
        np.testing.assert_array_equal(found[RATIO].arrays[part], getattr(data, part))


def test_all_buckets_between_the_first_and_the_last_are_equally_long() -> None:
    """Whatever finer elements stand at the ends, and however many buckets may be."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        ends = (rng.integers(1, 8, rng.integers(0, 9)) for _ in range(2))  # together less than one whole element
        weight = np.concatenate([next(ends), np.full(rng.integers(1, 200), 64), next(ends)])
        most = int(rng.integers(1, 60))
        starts, last = bucket_bounds(weight, most)
        assert len(starts) <= most
        assert (starts[0], last[-1]) == (0, len(weight) - 1)
        np.testing.assert_array_equal(starts[1:], last[:-1] + 1)
        assert len(set(np.add.reduceat(weight, starts)[1:-2])) <= 1
