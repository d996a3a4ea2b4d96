"""Runs that are exported from one installation and imported into another are equal bit for bit on either engine. Hostile files
are refused."""

from __future__ import annotations

import io
import json
import math
import re
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from server.database.connection import Database
from server.database.models import BlockRow, Run, SeriesRow, Sweep, Transition
from server.keep import archive, imports
from server.keep.archive import ArchiveError, ArchiveWriter, read_parts
from server.keep.exports import write_archive
from server.keep.imports import import_archive
from server.lifecycle import autopsies
from server.lifecycle import transitions as lifecycle
from server.lifecycle.autopsy_findings import check_findings
from server.series.compaction import compact
from server.series.reading import read_series
from server.series.rules import rules_of
from stablessm_core.report.messages import MetricsMessage
from tests.server.autopsies import findings
from tests.server.http_service import application, client_of, error_of
from tests.server.recording import Recording, claim, config, nonfinite
from tests.server.storing import store_metrics

pytestmark = pytest.mark.both_engines

TAR = {"Content-Type": "application/x-tar"}


def recorded(database: Database, *, metrics: bool = False) -> list[Recording]:
    """A sweep of two ended runs with all kinds of numbers. One of them diverged, and its blocks are merged. metrics: whether the
    runs also have free metrics and an alert rule."""
    with database.write() as session:
        sweep = lifecycle.new_sweep(session, {"task": {"name": "polynomial_memory"}}, {"train.seed": [0, 1]}, name="seeds")
        for seed in (0, 1):
            lifecycle.submit(session, config(train__seed=seed, name=f"seed {seed}", tags=["paper"]), sweep_id=sweep.id)
    done = []
    for seed in (0, 1):
        recording = Recording(database, claim(database, "gpu3:7:1"), seed=seed, width=3, layers=2)
        recording.write(40, [nonfinite()])
        recording.write(40)
        run = recording.claim
        if metrics:
            logged = {"val/acc": [0.5, math.nan, None], "métrique": [1.0, math.inf, -2.5]}
            with database.write() as session:
                store_metrics(session, run.run_id, run.attempt, MetricsMessage([7, 31, 32], logged))
                session.get_one(Run, run.run_id).rules = [{"name": "val/acc", "condition": "< 0.1", "steps": 5}]
        with database.write() as session:
            lifecycle.set_environment(session, run.run_id, run.attempt, {"device": "cpu", "torch": "2.13.0"})
            result = {"train_loss": 0.1 + 0.2 if seed else "NaN", "rollbacks": 0}
            divergence = {"step": 80, "layer": 1, "eigenvalue": 2, "tensor": "w", "value": "NaN"}
            status, lost = ("finished", None) if seed else ("diverged", divergence)
            lifecycle.finish(session, run.run_id, run.attempt, status, "as it ended", result, lost)
            row = session.get_one(Run, run.run_id)
            row.largest_ratio, row.nearest_distance, row.overflow_budget = 3e30, -math.inf, math.inf
            if not seed:
                autopsies.queue_autopsy(session, row, step=3, by="ada")
                done_by = autopsies.claim_autopsy(session, row.id, "gpu3:7:1")
                assert done_by is not None
                assert autopsies.end_autopsy(session, done_by, findings=check_findings(findings()))
            if seed:  # makes the run look like a fork of the first
                row.forked_from, row.forked_at_step, row.fork_changes = done[0].claim.run_id, 40, {"train.seed": 1}
        done.append(recording)
    compact(database, done[0].claim.run_id)
    return done


def exported(database: Database, *run_ids: int) -> io.BytesIO:
    file = io.BytesIO()
    write_archive(database, run_ids, file, "http://there:8000")
    return file


def blocks(database: Database, run_id: int) -> list[dict[str, Any]]:
    table = BlockRow.__table__
    with database.read() as session:
        rows = session.execute(select(*table.c).where(table.c.run_id == run_id).order_by(*table.primary_key))
        return [{name: value for name, value in row._mapping.items() if name != "run_id"} for row in rows]


@pytest.fixture(scope="module", params=["sqlite to postgres", "postgres to sqlite"])
def places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_postgres_url: str
) -> Iterator[tuple[Database, Database, Path]]:  # fmt: skip
    """The source installation, the target installation, and a folder."""
    folder = tmp_path_factory.mktemp("archive")
    here, there = Database(f"sqlite:///{folder / 'x.db'}"), Database(module_postgres_url)
    for database in (here, there):
        database.migrate()
    with there.write() as session:
        session.query(Run).delete()
    yield (here, there, folder) if request.param.startswith("sqlite") else (there, here, folder)
    here.close()
    there.close()


@pytest.mark.postgres
@pytest.mark.slow
def test_an_exported_sweep_is_imported_bit_for_bit_on_the_other_database_engine(places: tuple[Database, Database, Path]) -> None:
    source, target, folder = places
    done = recorded(source, metrics=True)
    with target.write() as session:
        lifecycle.request_cancel(session, lifecycle.submit(session, config(name="of this server")).id)
    with client_of(application(source.url, folder / "a")) as here, client_of(application(target.url, folder / "b")) as there:
        before = [here.get(f"/api/runs/{one.claim.run_id}").json() for one in done]
        answer = here.get("/api/exports", params={"sweep": before[0]["sweep_id"]})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-tar"), answer.text
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
            assert tar.getnames()[-2:] == ["manifest.json", "manifest.sha256"]
        arrived = there.post("/api/imports", content=answer.content, headers=TAR)
        assert arrived.status_code == 201, arrived.text
        runs = arrived.json()["runs"]
        assert [run["was"] for run in runs] == [run["id"] for run in before]
        for recording, old, new in zip(done, before, runs, strict=True):
            shown = there.get(f"/api{new['url']}").json()
            same = ("name", "tags", "notes", "config", "status", "status_reason", "result", "divergence", "step", "attempt",
                    "created_at", "started_at", "finished_at", "forms", "alerts", "host", "worker", "largest_ratio",
                    "nearest_distance", "overflow_budget", "forked_at_step", "fork_changes", "metrics")  # fmt: skip
            assert {name: shown[name] for name in same} == {name: old[name] for name in same}
            assert shown["bytes_stored"] == sum(len(row["payload"]) for row in blocks(target, new["id"])) > 0
            assert shown["environment"]["imported"] == {"run": old["id"], "from": "http://127.0.0.1:8000"}
            assert blocks(target, new["id"]) == blocks(source, old["id"])
            with source.read() as was, target.read() as now:
                assert rules_of(now.get_one(Run, new["id"])) == rules_of(was.get_one(Run, old["id"])) != []
                for name in recording.truth:
                    then = read_series(was, old["id"], name, max_points=1000).value
                    here_now = read_series(now, new["id"], name, max_points=1000).value
                    assert then is not None
                    assert here_now is not None
                    assert np.asarray(then, np.float32).tobytes() == np.asarray(here_now, np.float32).tobytes(), name
                reason = now.scalar(
                    select(Transition.reason).where(Transition.run_id == new["id"]).order_by(Transition.seq.desc()).limit(1)
                )
                assert reason == f"imported: run {old['id']} of http://127.0.0.1:8000"
            assert there.get(new["url"], headers={"Accept": "text/html"}).status_code == 200
        examined = [
            client.get(f"/api/runs/{run}/autopsy").json() for client, run in ((here, before[0]["id"]), (there, runs[0]["id"]))
        ]
        of_here = ("run_id", "requested_by")  # names of users are not exported
        assert [{k: v for k, v in one.items() if k not in of_here} for one in examined[:1]] == [
            {k: v for k, v in one.items() if k not in of_here} for one in examined[1:]
        ]
        assert (examined[1]["state"], examined[1]["batch"]["largest_input"]) == ("done", "Infinity")
        assert (examined[0]["requested_by"], examined[1]["requested_by"]) == ("ada", None)
        assert there.get(f"/api/runs/{runs[1]['id']}/autopsy").json()["state"] == "none"
        assert there.get(f"/api/runs/{runs[1]['id']}").json()["forked_from"] == runs[0]["id"]
        # A finished run cannot be resumed.
        assert error_of(there.post(f"/api/runs/{runs[1]['id']}/resume"), 409)["field"] == "status"
        alone = here.get("/api/exports", params={"runs": str(before[1]["id"])})
        (fork,) = there.post("/api/imports", content=alone.content, headers=TAR).json()["runs"]
        shown = there.get(f"/api{fork['url']}").json()
        assert (shown["forked_from"], shown["forked_at_step"]) == (None, 40)
        assert "from a run that is not in this installation" in there.get(fork["url"], headers={"Accept": "text/html"}).text
        assert there.delete(f"/api/runs/{fork['id']}").status_code == 204
        (sweep,) = arrived.json()["sweeps"]
        assert there.get(f"/api/sweeps/{sweep}").json()["name"] == "seeds"
        compared = there.get("/api/compare", params={"q": f"sweep={sweep}"}).json()
        assert [run["id"] for run in compared["runs"]] == [run["id"] for run in runs]
        again = there.get("/api/exports", params={"runs": ",".join(str(run["id"]) for run in runs)})
        assert again.status_code == 200


def test_runs_with_damaged_numbers_are_not_exported(sqlite: Database, tmp_path: Path) -> None:
    run_id = recorded(sqlite)[1].claim.run_id
    with sqlite.write() as session:
        row = session.scalars(select(BlockRow).where(BlockRow.run_id == run_id).limit(1)).one()
        row.payload = row.payload[:-1] + bytes([row.payload[-1] ^ 1])
    with client_of(application(sqlite.url, tmp_path)) as client:
        assert "are damaged" in error_of(client.get("/api/exports", params={"runs": str(run_id)}), 500)["message"]


def test_only_ended_runs_are_exported_and_invalid_requests_are_refused(sqlite: Database, tmp_path: Path) -> None:
    with sqlite.write() as session:
        lifecycle.submit(session, config())
    with client_of(application(sqlite.url, tmp_path)) as client:
        error = error_of(client.get("/api/exports", params={"runs": "1"}), 409)
        assert (error["field"], error["message"]) == ("runs", "run 1 is queued")
        assert error_of(client.get("/api/exports"), 422)["field"] == "runs"
        assert error_of(client.get("/api/exports", params={"runs": "1", "q": "a"}), 422)["field"] == "runs"
        assert error_of(client.get("/api/exports", params={"runs": "77"}), 404)["field"] == "runs"
        assert error_of(client.get("/api/exports", params={"q": "staus=failed"}), 422)["field"] == "q"
        assert error_of(client.get("/api/exports", params={"q": "status=failed"}), 404)["field"] == "q"
        reader = client.post("/api/tokens", json={"name": "r", "scope": "submit"}).json()["secret"]
        refused = client.post("/api/imports", content=b"x", headers={**TAR, "Authorization": f"Bearer {reader}"})
        assert error_of(refused, 403)["field"] == "scope"
        assert error_of(client.post("/api/imports", content=b"{}", headers={"Content-Type": "application/json"}), 415)
        assert "cut short" in error_of(client.post("/api/imports", content=b"x" * 5000, headers=TAR), 422)["message"]
        assert error_of(client.post("/api/imports", headers=TAR), 422)["field"] == "body"


@pytest.fixture(scope="module")
def genuine(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of two runs."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('genuine') / 'x.db'}")
    database.migrate()
    ids = [one.claim.run_id for one in recorded(database)]
    content = exported(database, *ids).getvalue()
    database.close()
    return content


def resealed(content: bytes, change: Callable[[str, bytes], bytes | None], facts: dict[str, Any] | None = None) -> io.BytesIO:
    """The archive with changed parts (None removes a part) and recomputed digests."""
    file = io.BytesIO()
    writer = ArchiveWriter(file)
    manifest: dict[str, Any] = {}
    for name, data in read_parts(io.BytesIO(content)):
        if name == archive.MANIFEST:
            manifest = json.loads(data)
        elif name != archive.SEAL and (new := change(name, data)) is not None:
            writer.add(name, new)
    writer.close({key: value for key, value in (manifest | (facts or {})).items() if key not in ("parts", "format")})
    return file


def described(change: Callable[[dict[str, Any]], object]) -> Callable[[str, bytes], bytes]:
    """Changes the description of run 1."""

    def changed(name: str, data: bytes) -> bytes:
        if name != "runs/1/run.json":
            return data
        content = json.loads(data)
        change(content)
        return json.dumps(content).encode()

    return changed


def in_blocks(change: Callable[[dict[str, Any], bytes], bytes]) -> Callable[[str, bytes], bytes]:
    """Changes the first block of run 1."""

    def changed(name: str, data: bytes) -> bytes:
        if name != "runs/1/blocks/000001.bin":
            return data
        (length,) = struct.unpack_from("<I", data)
        head = json.loads(data[4 : 4 + length])
        end = 4 + length + head["payload"]
        payload = change(head, data[4 + length : end])
        head.setdefault("payload", 0)
        if head["payload"] >= 0:
            head["payload"] = len(payload)
        text = json.dumps(head).encode()
        return struct.pack("<I", len(text)) + text + payload + data[end:]

    return changed


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """put("run", "step", 3) sets content["run"]["step"] = 3."""

    def change(content: Any) -> None:
        for key in path[:-2]:
            content = content[key]
        content[path[-2]] = path[-1]

    return change


def set_head(name: str, value: Any) -> Callable[[dict[str, Any], bytes], bytes]:
    def change(head: dict[str, Any], payload: bytes) -> bytes:
        head[name] = value
        return payload

    return change


def weight_of(content: dict[str, Any]) -> dict[str, Any]:
    """The first series of weights in the catalogue."""
    return next(row for row in content["series"] if row["name"].endswith("/weight"))


BOMB = b"\x02" + bytes.fromhex("28b52ffd") + b"\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(put("run", "status", "running")), "the run must have ended"),
        (described(put("run", "status", "<script>")), "given: '<script>'"),
        (described(put("run", "step", -5)), "step cannot be -5"),
        (described(put("run", "step", "7")), "step cannot be '7'"),
        (described(put("run", "step", 2**70)), "step cannot be"),
        (described(put("run", "finished_at", None)), "finished_at: Input should be a valid number"),
        (described(put("run", "finished_at", 1e300)), "finished_at cannot be"),
        (described(put("run", "name", "a\0b")), "name cannot be"),
        (described(put("run", "name", "\ud800")), "name cannot be"),
        (described(put("run", "name", "n" * 300)), "name cannot be"),
        (described(put("run", "tags", [1])), "tags.0: Input should be a valid string"),
        (described(put("run", "config", {})), "configuration that is not possible"),
        (described(put("run", "config", "optimizer", "lr", -1)), "optimizer.lr"),
        (described(put("run", "config", "task", "name", "sudoku")), "task.name"),
        (described(put("run", "result", {"train_loss": "low"})), "result.train_loss"),
        (described(put("run", "environment", {"a": "\0"})), "environment cannot be"),
        (described(put("run", "environment", [1])), "environment: Input should be"),
        (described(put("run", "forms", [1])), "forms.0"),
        (described(put("run", None)), "is not a record"),
        (described(put("series", 3)), "run 1 is not described"),
        (described(lambda content: content["series"].append(content["series"][0])), "the same record twice"),
        (described(lambda content: weight_of(content).update(width=weight_of(content)["width"] - 1)), "eigenvalues"),
        (described(put("series", 0, "width", 0)), "width: 0 is not allowed (allowed: >= 1)"),
        (described(put("series", 0, "width", 10**9)), "width: 1000000000 is not allowed (allowed: <="),
        (described(put("series", -1, "column_offset", 40_000)), "column_count cannot be"),
        (described(put("series", 1, "form", {"map": "best"})), "form.time: Field required"),
        (described(put("alerts", 0, "severity", "fatal")), "severity: 'fatal' is unknown (allowed: warning"),
        (described(put("alerts", 0, "kind", "k" * 60)), "kind cannot be"),
        (described(put("history", 0, "status", "done")), "status: 'done' is unknown (allowed: "),
        (described(put("history", 0, "seq", 10**6)), "seq cannot be"),
        (described(put("autopsy", [1])), "autopsy is not a record"),
        (described(put("autopsy", "requested_at", "soon")), "requested_at cannot be 'soon'"),
        (described(put("autopsy", "ended_at", 1e300)), "ended_at cannot be"),
        (described(put("autopsy", "findings", None)), "findings: Input should be"),
        (described(put("autopsy", "findings", {"step": 3})), "findings without `refused` need"),
        (described(put("autopsy", "findings", "step", 10**9)), "findings.step: 1000000000 is not allowed"),
        (described(put("autopsy", "findings", "loss", "low")), "findings.loss"),
        (described(put("autopsy", "findings", "first_nonfinite", "pass", "<b>")), "findings.first_nonfinite.pass"),
        (described(put("autopsy", "findings", "first_nonfinite", "module", "m\0")), "findings cannot be"),
        (described(put("autopsy", "findings", "modules", [{}])), "findings.modules.0"),
        (described(put("autopsy", "findings", "counterfactuals", 0, "steps", [1] * 10_001)), "findings.counterfactuals.0.steps"),
        (in_blocks(set_head("level", 9)), "level cannot be 9"),
        (in_blocks(set_head("stride", 0)), "stride cannot be 0"),
        (in_blocks(set_head("point_count", 0)), "point_count cannot be 0"),
        (in_blocks(set_head("point_count", 7)), "last_step cannot be 80"),
        (in_blocks(set_head("column_count", 2**30)), "block payload of"),
        (in_blocks(set_head("first_step", 10**9)), "first_step cannot be"),
        (in_blocks(set_head("group_name", None)), "group_name cannot be None"),
        (in_blocks(lambda head, payload: BOMB), "block payload holds"),
        (in_blocks(lambda head, payload: b"\x09" + payload[1:]), "block codec is 9"),
        (in_blocks(lambda head, payload: payload[:-20]), "block payload"),
        (in_blocks(lambda head, payload: head.update(payload=-1) or b""), "not complete"),
        (described(put("run", "created_at", 1e14)), "created_at: 100000000000000.0 is not allowed (allowed: "),
        (described(put("run", "forms", 5)), "forms: Input should be a valid list"),
        (described(put("run", "forms", 0, "rule", "later")), "rule is 'later'"),
        (described(put("run", "divergence", {"step": "soon"})), "divergence.step"),
        (described(put("run", "environment", {"data": 3})), "environment.data"),
        (described(put("run", "largest_ratio", 10**400)), "largest_ratio"),
        (described(put("run", "nearest_distance", "NaN")), "nearest_distance"),
        (described(put("run", "seq", 2**62)), "seq: 4611686018427387904 is not allowed (allowed: "),
        (described(put("series", 1, "group_name", "ssm/²")), "group_name"),
        (described(put("series", 1, "name", "ssm/7/weight")), "does not fit the group"),
        (described(lambda content: content["series"].pop(3)), "cannot be shown"),
        (described(put("alerts", 0, "value", "low")), "value: a number as text is needed"),
        (in_blocks(set_head("stride", 3)), "last_step cannot be"),
        (in_blocks(set_head("seq", 10**6)), "seq cannot be"),
        (in_blocks(set_head("group_name", "nobody")), "a group with series in the catalogue"),
        (lambda name, data: data + data if name.endswith("2/blocks/000001.bin") else data, "the end of the block before it"),
        (lambda name, data: data[:-3] if name.endswith("1/blocks/000001.bin") else data, "not complete"),
        (lambda name, data: b"[" * 200_000 if name.endswith("1/run.json") else data, "is not JSON"),
        (lambda name, data: b'{"run": NaN}' if name.endswith("1/run.json") else data, "is not JSON: NaN"),
        (lambda name, data: None if name.endswith("2/run.json") else data, "before the description"),
        (lambda name, data: None if "runs/2/" in name else data, "does not list the runs that it holds"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_an_archive_that_no_server_would_have_written_is_refused_and_imports_nothing(
    sqlite: Database, genuine: bytes, change: Callable[[str, bytes], bytes | None], message: str
) -> None:
    with pytest.raises(ArchiveError, match=re.escape(message)):
        import_archive(sqlite, resealed(genuine, change), submitted_by=None, user_id=None)
    with sqlite.read() as session:
        for table in (Run, Sweep, SeriesRow, BlockRow):
            assert session.scalar(select(func.count()).select_from(table)) == 0


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive of two runs with free metrics."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('logged') / 'x.db'}")
    database.migrate()
    ids = [one.claim.run_id for one in recorded(database, metrics=True)]
    content = exported(database, *ids).getvalue()
    database.close()
    return content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_blocks(set_head("stride", 3)), "1 to 4,096 points at level 0 with stride 1"),
        (in_blocks(set_head("point_count", 3)), "block payload"),
        (in_blocks(set_head("last_step", 33)), "last_step cannot be 33; allowed: the last of the steps from 7 to 31"),
        (in_blocks(set_head("first_step", 8)), "the last of the steps from 7 to 31"),
        (in_blocks(set_head("seq", 2)), "seq cannot be 2"),
        (in_blocks(set_head("group_name", "metrics/7")), "in a group of the catalogue"),
        (in_blocks(lambda head, payload: payload[:5] + b"junk" + payload[9:]), "block payload"),
        (described(put("series", 0, "name", "ssm/0/weight")), "does not fit the group"),
        (described(put("run", "rules", 0, "condition", "soon")), "rules.0.condition"),
    ],
)
def test_an_archive_with_impossible_metrics_is_refused(
    sqlite: Database, logged: bytes, change: Callable[[str, bytes], bytes | None], message: str
) -> None:
    with pytest.raises(ArchiveError, match=re.escape(message)):
        import_archive(sqlite, resealed(logged, change), submitted_by=None, user_id=None)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"runs": []}, "holds 0 runs"),
        ({"runs": 3}, "runs: Input should be a valid list"),
        ({"runs": [{"id": 1, "sweep": 9}]}, "a sweep that is not in it"),
        ({"sweeps": [{"id": 1}]}, "base: Field required"),
    ],
)
def test_an_archive_with_an_inconsistent_manifest_is_refused(
    sqlite: Database, genuine: bytes, facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ArchiveError, match=message):
        import_archive(sqlite, resealed(genuine, lambda name, data: data, facts), submitted_by=None, user_id=None)


def test_every_truncation_and_every_changed_byte_of_an_archive_is_detected(sqlite: Database, genuine: bytes) -> None:
    for cut in [0, 1, 511, 512, 600, *range(1000, len(genuine) - 1024, len(genuine) // 40)]:
        with pytest.raises(ArchiveError):
            archive.verify(io.BytesIO(genuine[:cut]))
    for place in range(130, len(genuine) - 1024, len(genuine) // 60):
        damaged = bytearray(genuine)
        damaged[place] ^= 1
        try:
            archive.verify(io.BytesIO(damaged))
        except ArchiveError:
            continue
        # Only the padding of a part to a whole record is not covered by a digest, and it is never read.
        assert genuine[place] == 0
    assert archive.verify(io.BytesIO(genuine))["source"] == "http://there:8000"


def test_links_paths_and_oversized_parts_are_refused_before_they_are_read(genuine: bytes) -> None:
    def tar_of(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> io.BytesIO:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
        return io.BytesIO(info.tobuf(tarfile.USTAR_FORMAT) + bytes(4096))

    regular = [
        (name, tarfile.REGTYPE) for name in ("../../etc/passwd", "/etc/passwd", "runs/1/run.json/../x", "runs/01/run.json")
    ]
    kinds = (tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)
    for name, kind in [*regular, *(("runs/1/run.json", kind) for kind in kinds)]:
        with pytest.raises(ArchiveError, match="does not belong"):
            archive.verify(tar_of(name, kind))
    for name in ("runs/1/run.json", "runs/1/blocks/000001.bin", "manifest.json"):
        with pytest.raises(ArchiveError, match="a part has at most"):
            archive.verify(tar_of(name, size=(64 << 20) + 1))
    twice = genuine[:-1024] + genuine
    with pytest.raises(ArchiveError, match="twice"):
        archive.verify(io.BytesIO(twice))


def test_an_import_that_fails_half_way_stores_nothing(sqlite: Database, genuine: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def read(*arguments: Any) -> None:
        seen.append(arguments)
        if len(seen) > 1:
            raise ArchiveError("it broke")

    monkeypatch.setattr(imports, "read_back", read)
    with pytest.raises(ArchiveError, match="it broke"):
        import_archive(sqlite, io.BytesIO(genuine), submitted_by=None, user_id=None)
    with sqlite.read() as session:
        assert [session.scalar(select(func.count()).select_from(table)) for table in (Run, Sweep, BlockRow)] == [0, 0, 0]
