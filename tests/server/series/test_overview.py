"""Every bucket of the overview agrees with the series, whichever way the overview is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sqlalchemy import event

from server.database.connection import Database
from server.series import block_cache, overview, reading
from server.series.heat import HIGHEST, LOWEST, NAN_CODE, NOTHING, ZERO, heat_codes
from server.series.layout import Layout
from server.series.overview import Overview, OverviewOptions, read_overview
from server.series.plans import bucket_bounds, raw_stats
from stablessm_core.telemetry.series import DERIVED_GROUPS
from tests.server.recording import Recording, claimed

RATIO = "ssm/0/grad_over_weight"


def recorded(database: Database, points: int, width: int = 5, map_: str = "best") -> Recording:
    made = Recording(database, claimed(database, model__reparameterization__name=map_), width=width)
    for _ in range(points // 500):
        made.write(500)
    return made


def shown(database: Database, **options: Any) -> tuple[dict[str, Overview], list[int]]:
    with database.read() as session:
        layout = Layout(session, 1)
        found, lines = read_overview(
            session, layout, list(layout.series.values()), OverviewOptions(**{"by": RATIO, "top": 2} | options)
        )
    return {one.name: one for one in found}, lines


def of_series(database: Database, name: str, points: int, **options: Any) -> reading.SeriesData:
    with database.read() as session:
        return reading.read_series(session, 1, name, max_points=points, **options)


@pytest.mark.parametrize(
    ("points", "stretch"), [(100, {}), (30, {"from_step": 700, "to_step": 5600}), (900, {"from_step": 4001})]
)
@pytest.mark.slow
def test_the_overview_agrees_with_the_series(
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


def test_the_overview_of_a_short_run_contains_every_value(database: Database) -> None:
    made = recorded(database, 500)
    found, _ = shown(database, points=1000)
    assert set(found) >= set(made.truth)
    for name, one in found.items():
        truth = made.truth[name] if name in made.truth else of_series(database, name, 1000).value
        np.testing.assert_array_equal(one.arrays["value"], truth.astype(np.float32))


def test_the_heatmap_shows_a_single_nan_among_many_values() -> None:
    """One of 300,000 ratios is NaN. Exactly one cell shows it, although each cell combines several ratios."""
    values = np.exp(np.random.default_rng(0).standard_normal((300, 1000))).astype(np.float32)
    values[123, 456] = np.nan
    codes, facts = heat_codes(raw_stats(values), *bucket_bounds(np.ones(1000, np.int64), 100))
    assert codes.shape == (150, 100)
    assert np.argwhere(codes == NAN_CODE).tolist() == [[61, 45]]
    assert facts["heat_rows"][61] == 122


def test_a_cell_of_the_heatmap_in_which_every_value_is_exactly_0_has_its_own_code() -> None:
    values = np.full((3, 40), 1e-20, np.float32)
    values[1, 10:20], values[2, 15] = 0, 0
    codes, _ = heat_codes(raw_stats(values), *bucket_bounds(np.ones(40, np.int64), 4))
    assert np.argwhere(codes == ZERO).tolist() == [[1, 1]]
    assert (codes[[0, 2]] == LOWEST).all()


def test_each_block_is_decoded_only_once_for_all_series(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(sqlite, 6000)
    seen, real = [], block_cache.stored_numbers

    def counted(block: Any, *more: Any) -> np.ndarray:
        seen.append((block.group_name, block.level, block.first_step))
        return real(block, *more)

    monkeypatch.setattr(block_cache, "stored_numbers", counted)
    shown(sqlite, points=100, heat=[RATIO])
    assert len(seen) == len(set(seen)) > 3


def test_the_number_of_queries_does_not_depend_on_the_number_of_layers(sqlite: Database) -> None:
    statements: list[str] = []
    event.listen(sqlite._reader, "before_cursor_execute", lambda *args: statements.append(args[2]))
    counts = []
    for layers in (1, 3):
        made = Recording(sqlite, claimed(sqlite), layers=layers)
        for _ in range(12):
            made.write(500)
        with sqlite.read() as session:
            layout = Layout(session, made.claim.run_id)
            rows = [row for row in layout.series.values() if not row.group.endswith(DERIVED_GROUPS)]
            statements.clear()
            read_overview(session, layout, rows, OverviewOptions(points=100))
        counts.append(len([text for text in statements if text.startswith("SELECT")]))
    assert counts == [3, 3]  # queries for the extents, level 1, and the raw points of the newest steps


def of_part(database: Database, name: str, part: str) -> np.ndarray:
    values = getattr(of_series(database, name, 50), part)
    assert isinstance(values, np.ndarray)
    return values


def test_notable_eigenvalues_are_drawn_as_lines_and_heatmap_rows_are_sorted_by_decay_time(
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
    assert (np.diff(np.where(np.isnan(end), -np.inf, end)[rows]) <= 0).all(), (
        "rows must be sorted by decay time, the fastest first"
    )
    plain, _ = shown(database, points=50, heat=[RATIO])
    np.testing.assert_array_equal(found[RATIO].arrays["heat"], plain[RATIO].arrays["heat"][rows])


def test_the_buckets_of_every_eigenvalue_equal_those_of_the_series(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "FULL_NUMBERS", 0)
    recorded(database, 3000)
    found, _ = shown(database, points=300, each=True)
    data = of_series(database, RATIO, 300)
    for part in ("min", "max", "last", "nonfinite"):
        np.testing.assert_array_equal(found[RATIO].arrays[part], getattr(data, part))


def test_all_inner_buckets_have_the_same_length() -> None:
    """Also if the elements at both ends cover fewer steps than those between them, and for every maximum number of buckets."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        ends = (rng.integers(1, 8, rng.integers(0, 9)) for _ in range(2))  # the finer elements of an end
        weight = np.concatenate([next(ends), np.full(rng.integers(1, 200), 64), next(ends)])
        most = int(rng.integers(1, 60))
        starts, last = bucket_bounds(weight, most)
        assert len(starts) <= most
        assert (starts[0], last[-1]) == (0, len(weight) - 1)
        np.testing.assert_array_equal(starts[1:], last[:-1] + 1)
        assert len(set(np.add.reduceat(weight, starts)[1:-2])) <= 1
