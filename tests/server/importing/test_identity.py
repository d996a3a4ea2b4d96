"""Imported runs never mix: who is who is decided by their files and numbers, and a known run keeps its numbers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from server.importing import tensorboard
from server.importing.sending import opening, send_run
from stablessm_core.report.link import Server
from tests.server.http_service import TOKEN
from tests.server.importing.command import run, stored
from tests.server.importing.reading import found, spelled, write_events

pytestmark = [pytest.mark.slow]
NAME = "events.out.tfevents.1700000000.host.7.v2"


def numbers(server: httpx.Client) -> list[list[tuple[int, str]]]:
    return [one["numbers"]["train/loss"] for one in stored(server)]


@pytest.mark.parametrize("first", [1.0, 2.0])
def test_seeds_with_one_first_event_and_one_folder_name_stay_apart(first: float, server: httpx.Client, tmp_path: Path) -> None:
    # the files have one name and one first event, and in one case also one first scalar
    runs = {"a": [(0, 1.0), (1, 3.0), (2, 5.0)], "b": [(0, first), (1, 4.0)], "c": [(0, 1.0), (1, 3.0)]}
    for name, events in runs.items():
        write_events(tmp_path / "logs" / name / "train" / NAME, events)
    done = run(server, tmp_path / "logs", "-p", "p")
    assert done.exit_code == 0, done.output
    expected = [spelled(*map(list, zip(*events, strict=True))) for events in runs.values()]
    assert numbers(server) == expected
    again = run(server, tmp_path / "logs", "-p", "p")
    assert again.output.count("(known; only new numbers are added)") == 3
    assert numbers(server) == expected
    write_events(tmp_path / "logs" / "b" / "train" / NAME, [*runs["b"], (2, 6.0)])
    run(server, tmp_path / "logs", "-p", "p")
    assert [len(one) for one in numbers(server)] == [3, 3, 2]


def test_a_table_whose_value_changed_is_a_new_run_and_the_difference_is_told(server: httpx.Client, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("step,loss\n1,2\n2,1.5\n3,nan\n")
    run(server, table, "-p", "p")
    table.write_text("step,loss\n1,2\n2,1.25\n3,nan\n")
    done = run(server, table, "-p", "p")
    assert done.exit_code == 0
    assert "run 1 has another value at step 2 of train/loss: 1.5 there, 1.25 here; this is a new run" in done.output
    assert "(known" not in done.output
    again = run(server, table, "-p", "p")
    assert "this is run 2" in again.output
    assert "(known; only new numbers are added)" in again.output
    assert numbers(server) == [spelled([1, 2, 3], [2, value, float("nan")]) for value in (1.5, 1.25)]


def test_a_later_value_at_a_stored_step_of_the_same_file_belongs_to_the_run(server: httpx.Client, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("step,loss\n1,2\n2,1.5\n")
    run(server, table, "-p", "p")
    table.write_text("step,loss\n1,2\n2,1.5\n2,1.25\n3,1\n")
    done = run(server, table, "-p", "p")
    assert "left out: earlier values at a step that has a later, different value (1)" in done.output
    assert numbers(server) == [spelled([1, 2, 3], [2, 1.25, 1])]


def import_as_before(server: httpx.Client, path: Path) -> None:
    """Import as the version before did, which knew a run by its first event and the name of its folder."""
    for one in found(path):
        one.identity = one.former_identities[0]
        one.rename("loss", "train/loss")
        assert opening(one, "p", [])["id"] == one.id("p")
        send_run(Server(str(server.base_url), TOKEN), one, "p", [], lambda _: None)


def test_a_run_of_the_version_before_is_known_again(server: httpx.Client, tmp_path: Path) -> None:
    file = write_events(tmp_path / "logs" / "a" / NAME, [(0, 1.0), (1, 2.0)])
    import_as_before(server, tmp_path / "logs")
    write_events(file, [(0, 1.0), (1, 2.0), (2, 3.0)])
    done = run(server, tmp_path / "logs", "-p", "p")
    assert "(known; only new numbers are added)" in done.output
    assert numbers(server) == [spelled([0, 1, 2], [1, 2, 3])]


def test_runs_that_the_version_before_mixed_become_two_and_the_old_one_stays(server: httpx.Client, tmp_path: Path) -> None:
    long, short = [(0, 1.0), (1, 1.0), (2, 1.0)], [(0, 2.0), (1, 2.0)]
    for name, events in (("a", long), ("b", short)):
        write_events(tmp_path / "logs" / name / "train" / NAME, events)
    import_as_before(server, tmp_path / "logs")
    mixed = numbers(server)
    assert mixed == [spelled([0, 1, 2], [2, 2, 1])]
    done = run(server, tmp_path / "logs", "-p", "p")
    assert "an earlier version imported it, and it stays as it is" in done.output
    assert numbers(server) == [*mixed, spelled([0, 1, 2], [1, 1, 1]), spelled([0, 1], [2, 2])]


def test_the_identity_of_events_holds_the_name_of_the_file_and_the_first_scalar(tmp_path: Path) -> None:
    variants = [
        write_events(tmp_path / "a" / "run" / NAME, [(0, 1.0)]),
        write_events(tmp_path / "b" / "run" / NAME.replace("host", "other"), [(0, 1.0)]),
        write_events(tmp_path / "c" / "run" / NAME.replace("7", "8"), [(0, 1.0)]),
        write_events(tmp_path / "d" / "run" / NAME, [(0, 2.0)]),
    ]
    runs = [tensorboard.read([path], "run", lambda _: None) for path in variants]
    assert len({one.identity for one in runs}) == 4
    assert len({one.former_identities[0] for one in runs}) == 1
    assert runs[0].identity == tensorboard.read([variants[0]], "other/place", lambda _: None).identity
