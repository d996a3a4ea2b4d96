"""No mistake of a program and no failure around it changes a recorded number. A number that is lost is reported as lost."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import stablessm
from stablessm_core.outside.rows import StagedRow
from stablessm_core.report.link import Uplink
from stablessm_core.report.outbox import Outbox
from stablessm_core.watch.recorder import Recorder
from tests.core.outside.reading import read
from tests.core.outside.stand_ins import model_of


def test_a_loss_that_the_loop_changes_in_place_keeps_its_value(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    total = torch.zeros(())
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for i in range(4):
            total.fill_(float(i))
            run.loss(total)
            total.zero_()
            optimizer.step()
    assert read(tmp_path).sink.series("train/loss")[1][:, 0].tolist() == [0, 1, 2, 3]


def test_a_device_that_fails_at_the_end_does_not_lose_the_end(tmp_path: Path) -> None:
    class Unreadable:
        def __float__(self) -> float:
            raise RuntimeError("device-side assert")

    def unreadable() -> None:
        raise RuntimeError("device-side assert")

    model, optimizer = model_of(1)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    optimizer.step()
    run._recording._commit = unreadable
    run._closing.set()
    run._pacer.join()
    run._logged.append((1, {"a": Unreadable()}))
    run.finish("failed", "device-side assert")
    assert [end.status for end in read(tmp_path).ends] == ["failed"]
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("inside", ["row", "commit"])
def test_ctrl_c_inside_the_hook_counts_no_step_that_the_optimizer_does_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    calls = 0

    def interrupted(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyboardInterrupt
            return original(*args, **kwargs)

        return call

    owner, name = (StagedRow, "take") if inside == "row" else (Recorder, "record")
    monkeypatch.setattr(owner, name, interrupted(getattr(owner, name)))
    model, optimizer = model_of(1)

    def train() -> None:
        with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
            for i in range(6):
                run.loss(float(i))
                optimizer.step()

    with pytest.raises(KeyboardInterrupt):
        train()
    found = read(tmp_path)
    assert found.sink.series("train/loss")[1][:, 0].tolist() == [0, 1, 2]
    assert found.ends[0].reason == "Ctrl-C after step 3; 0 steps missing"


def test_the_default_dtype_and_device_of_torch_do_not_change_the_rows(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    before = model[0].A_log.detach().clone()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
            for _ in range(3):
                run.loss(1.0)
                optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    found = read(tmp_path).sink
    assert found.series("train/loss")[1][:, 0].tolist() == [1, 1, 1]
    assert found.series("ssm/0/weight")[1][0].tolist() == before.tolist()


@pytest.mark.slow
def test_rows_that_cannot_be_written_before_the_end_are_counted_and_no_thread_stays(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    run.loss(1.0)
    optimizer.step()
    time.sleep(0.3)
    write, until = run._sink.write, [float("inf")]

    def slow(flush: Any) -> None:
        while time.perf_counter() < until[0]:
            time.sleep(0.01)
        write(flush)

    run._sink.write = slow
    for _ in range(300):
        run.loss(1.0)
        optimizer.step()
    time.sleep(0.3)
    for _ in range(300):
        run.loss(1.0)
        optimizer.step()
    thread = run._recording._recorder._flusher.thread
    began = time.perf_counter()
    until[0] = began + 3.3
    run.finish()
    assert time.perf_counter() - began < 5
    assert not thread.is_alive()
    found = read(tmp_path)
    stored = len(found.sink.series("train/loss")[0])
    assert stored < 601
    assert stored + found.ends[0].result["telemetry_dropped"] == 601


def test_a_loss_that_starts_late_is_named_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, optimizer = model_of(1)
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for i in range(6):
            if i > 2:
                run.loss(1.0)
            optimizer.step()
    assert capfd.readouterr().err.count("the loss is not recorded") == 1


@pytest.mark.slow
def test_layers_that_are_added_while_the_run_is_being_opened_reach_the_server() -> None:
    class Slow(BaseHTTPRequestHandler):
        layers: ClassVar[list[int]] = []

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            self.layers.append(len(body["layers"]))
            time.sleep(0.3)
            answer = b'{"run_id": 1, "attempt": 1}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        box = Outbox(None, {}, print)
        uplink = Uplink(box, {"layers": []}, f"http://127.0.0.1:{server.server_address[1]}", None, print, known=True)
        while not Slow.layers:
            time.sleep(0.01)
        for count in (1, 2):
            uplink.open_again({"layers": [{}] * count})
        assert uplink.close(3)
        server.shutdown()
    assert Slow.layers[-1] == 2


def test_two_alerts_at_one_step_are_two_events(tmp_path: Path) -> None:
    with stablessm.log_only(mode="offline", dir=tmp_path) as run:
        run.log({"a": 1})
        run.alert("first")
        run.alert("second")
    assert len({alert.event for alert in read(tmp_path).sink.alerts}) == 2


@pytest.mark.slow
def test_a_continued_run_without_a_server_needs_the_number_of_its_last_step(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = model_of(1)
    more: dict[str, Any] = {"dir": tmp_path, "id": "8d3b2c6e-43b5-4a43-8d8a-3c05e7d1a001", "resume": "allow"}
    with pytest.raises(ValueError, match=r"^from_step is None"):
        stablessm.watch(model, optimizer, mode="offline", **more)
    run = stablessm.watch(model, optimizer, url="http://127.0.0.1:9", **more)
    for _ in range(3):
        optimizer.step()
    run.finish()
    assert capfd.readouterr().err.count("give from_step") == 1
    assert read(tmp_path).sink.catalogue == {}


def test_a_rank_that_is_no_number_is_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "main")
    with stablessm.log_only(mode="offline", dir=tmp_path) as run:
        run.log({"a": 1})
    assert read(tmp_path).metrics["a"] == [(1, 1)]


def test_the_last_sentence_is_said_however_many_came_before(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with stablessm.log_only(mode="offline", dir=tmp_path) as run:
        for i in range(50):
            run.log({f"name {i}": "text"})
    assert "sends it to a server" in capfd.readouterr().err


def test_a_run_that_has_ended_keeps_no_weight_alive(tmp_path: Path) -> None:
    model, optimizer = model_of(1)
    run = stablessm.watch(model, optimizer, mode="offline", dir=tmp_path)
    for _ in range(3):
        run.loss(1.0)
        optimizer.step()
    run.finish()
    gone = weakref.ref(model[0].A_log)
    del model, optimizer
    gc.collect()
    assert gone() is None
    assert run.step == 3


def test_names_beyond_what_a_run_can_have_are_one_sentence_and_cost_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stablessm.log_only(mode="offline", dir=tmp_path) as run:
        for i in range(3):
            run.log({f"name {k}": k for k in range(2500)} | {"name 3": i})
    found = read(tmp_path)
    assert len(found.metrics) == 2000
    assert found.metrics["name 3"] == [(1, 0), (2, 1), (3, 2)]
    assert [end.status for end in found.ends] == ["finished"]
    assert capfd.readouterr().err.count("at most 2,000 names of metrics") == 1


def test_an_optimizer_that_is_not_torchs_keeps_its_losses(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Plain:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)

        def step(self) -> None:
            for p in self.parameters:
                p.data -= 0.1 * p.grad

    model, _ = model_of(1)
    optimizer = Plain(model.parameters())
    with stablessm.watch(model, optimizer, mode="offline", dir=tmp_path) as run:
        for i in range(150):
            run.loss(float(i))
            run.log({"a": i})
            optimizer.step()
        assert run.step == 150
    found = read(tmp_path)
    assert found.metrics["train/loss"] == [(i + 1, i) for i in range(150)]
    assert [value for _, value in found.metrics["a"]] == list(range(150))
    assert capfd.readouterr().err.count("optimizer is a Plain, which is none; each loss is recorded as a step") == 1


def test_torch_optimizers_inside_another_object_are_found(tmp_path: Path) -> None:
    class Several:
        def __init__(self, *optimizers: Any) -> None:
            self.optimizers = optimizers

        def step(self) -> None:
            for one in self.optimizers:
                one.step()

    model, optimizer = model_of(1)
    several = Several(optimizer)
    with stablessm.watch(model, several, mode="offline", dir=tmp_path) as run:
        for i in range(4):
            run.loss(float(i))
            several.step()
    assert read(tmp_path).sink.series("train/loss")[1][:, 0].tolist() == [0, 1, 2, 3]
