"""Runs of an earlier release (schema 0006) are read as that release read them. Recorded numbers are equal bit for bit, and
so are derived numbers unless an exponential is involved: its last bit differs between machines.

`recorded_0006.db.xz` holds three runs of two layers: best and direct in discrete time, exp in continuous time.
`recorded_0006.npz.xz` holds the values that this release read from every series, with the keys "run|series|value".
"""

from __future__ import annotations

import io
import lzma
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from server.database.connection import Database
from server.series import reading
from server.series.catalogue import read_catalogue
from server.series.events import events_after
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import DERIVED_GROUPS
from stablessm_core.telemetry.stability import LN_LARGEST

HERE = Path(__file__).parent
MAPS = {1: ("best", "discrete"), 2: ("exp", "continuous"), 3: ("direct", "discrete")}


@pytest.fixture(scope="module")
def expected() -> dict[tuple[int, str], np.ndarray]:
    with np.load(io.BytesIO(lzma.decompress((HERE / "recorded_0006.npz.xz").read_bytes()))) as stored:
        names = {key: key.split("|") for key in stored.files}
        return {(int(run), name): stored[key] for key, (run, name, _) in names.items()}


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Database]:
    """The database of the earlier release, migrated to the current schema."""
    path = tmp_path / "stablessm.db"
    path.write_bytes(lzma.decompress((HERE / "recorded_0006.db.xz").read_bytes()))
    database = Database(f"sqlite:///{path}")
    database.migrate()
    yield database
    database.close()


def check(values: np.ndarray, truth: np.ndarray, *, exact: bool) -> None:
    assert values.dtype == truth.dtype
    if exact:
        np.testing.assert_array_equal(values.view(f"u{values.itemsize}"), truth.view(f"u{truth.itemsize}"))
    else:
        np.testing.assert_allclose(values, truth, rtol=4 * np.finfo(np.float64).eps, atol=0)


def test_every_series_of_an_earlier_release_reads_the_same_as_before(
    recorded: Database, expected: dict[tuple[int, str], np.ndarray]
) -> None:
    found = set()
    with recorded.read() as session:
        for run_id, (map_, time) in MAPS.items():
            for info in read_catalogue(session, run_id):
                if info.group.endswith(DERIVED_GROUPS):  # the earlier release did not have these groups
                    continue
                data = reading.read_series(session, run_id, info.name)
                assert data.value is not None
                truth, every = expected[run_id, info.name], 50 if info.group == "eval" else 1
                check(data.value, truth, exact=not info.derived or map_ != "exp")
                assert data.step.tolist() == list(range(every, every * len(truth) + 1, every))
                assert info.form == (Form.of_map(map_, time).data if info.group.startswith("ssm/") else None)
                found.add((run_id, info.name))
    assert found == set(expected)


def test_newer_series_are_derived_from_the_recordings_of_an_earlier_release(recorded: Database) -> None:
    with recorded.read() as session:
        for run_id in MAPS:
            listed = {info.name: info for info in read_catalogue(session, run_id)}
            for layer in (0, 1):
                kinds = ("eigenvalue", "boundary_distance", "relative_step", "overflow_budget")
                eigenvalue, distance, moved, budget = (
                    np.asarray(reading.read_series(session, run_id, f"ssm/{layer}/{kind}").value) for kind in kinds
                )
                form = listed[f"ssm/{layer}/overflow_budget"].form
                assert form is not None
                with np.errstate(all="ignore"):
                    truth = np.abs(np.diff(eigenvalue, axis=0)) / distance[:-1]
                truth[distance[:-1] < 0] = np.nan
                np.testing.assert_allclose(moved, truth, rtol=1e-12)
                np.testing.assert_allclose(budget[:, 0], form["length"] * np.log1p(-distance.min(1)) / LN_LARGEST, rtol=1e-12)


def test_a_series_is_derived_from_its_stored_form_instead_of_the_configuration(
    recorded: Database, expected: dict[tuple[int, str], np.ndarray]
) -> None:
    with sqlite3.connect(recorded.path or "") as connection:
        form = '{"map": "best", "time": "discrete", "rule": "none", "scale": 1.0, "a": 1.0, "b": 0.5, "dt": null}'
        connection.execute("UPDATE series SET form = ? WHERE run_id = 1 AND group_name = 'ssm/0'", (form,))
        connection.execute(
            "UPDATE series SET form = json_set(?, '$.map', 'direct') WHERE run_id = 1 AND group_name = 'ssm/1'", (form,)
        )
        connection.execute("UPDATE runs SET config = '{}' WHERE id = 1")
    with recorded.read() as session:
        first, second = (reading.read_series(session, 1, f"ssm/{layer}/eigenvalue").value for layer in (0, 1))
        weight = reading.read_series(session, 1, "ssm/1/weight").value
        forms = {info.group: info.form["map"] for info in read_catalogue(session, 1) if info.form and "derived" not in info.group}
    assert first is not None
    check(first, expected[1, "ssm/0/eigenvalue"], exact=True)
    np.testing.assert_array_equal(second, weight)
    assert forms == {"ssm/0": "best", "ssm/1": "direct"}


def test_a_form_of_a_newer_release_hides_only_the_series_derived_from_it(recorded: Database) -> None:
    with sqlite3.connect(recorded.path or "") as connection:
        connection.execute(
            """UPDATE series SET form = '{"map": "best", "time": "discrete", "gate": "sigmoid"}' WHERE group_name = 'ssm/0'"""
        )
    with recorded.read() as session:
        names = {info.name for info in read_catalogue(session, 1)}
        assert {name for name in names if name.startswith("ssm/0/")} == {"ssm/0/grad_over_weight", "ssm/0/weight"}
        assert reading.read_series(session, 1, "ssm/0/weight").value is not None
        assert reading.read_series(session, 1, "ssm/1/eigenvalue").value is not None
        with pytest.raises(LookupError, match="no series 'ssm/0/eigenvalue'"):
            reading.read_series(session, 1, "ssm/0/eigenvalue")
        assert all(point.name in names for event in events_after(session, 1, 0) for point in event.points)
