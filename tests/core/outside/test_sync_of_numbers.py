"""A file without an end says how far its run came, also if the run had no model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import stablessm
from stablessm_core.report.frames import HEAD
from stablessm_core.report.link import Frames, Refused
from stablessm_core.report.messages import EndMessage, from_bytes
from stablessm_core.report.sync import sync_file


class Kept:
    """What a server receives. refuses: the records that it can never store."""

    def __init__(self, refuses: tuple[bytes, ...] = ()) -> None:
        self.records: list[bytes] = []
        self.posts, self.refuses = 0, refuses

    def open_run(self, opening: dict[str, Any]) -> Any:
        return SimpleNamespace(body_bytes=1 << 20, records=1000, url="/runs/1")

    def post(self, opened: Any, body: bytes) -> Any:
        self.posts += 1
        found = []
        while body:
            end = HEAD.size + HEAD.unpack_from(body)[0]
            found.append(body[HEAD.size : end])
            body = body[end:]
        if any(record in self.refuses for record in found):
            raise Refused(422, "bad_frame", "too many")
        self.records += found
        return SimpleNamespace(stored_through=None, stop_requested=False)

    def close(self) -> None:
        pass


def test_a_killed_run_without_a_model_ends_after_its_last_logged_step(tmp_path: Path) -> None:
    run = stablessm.log_only(mode="offline", dir=tmp_path)
    for i in range(250):
        run.log({"x": i})
    run._closing.set()
    run._pacer.join()
    run._send_logged()
    run._outbox.close(delete=False)  # as if the process were killed here
    run._live = False
    (path,) = tmp_path.glob("*.ssmr")
    server: Any = Kept()
    assert sync_file(path, server).last_step == 250
    end = from_bytes(server.records[-1])
    assert isinstance(end, EndMessage)
    assert end.reason == "the process ended without a word after step 250"


def test_a_refused_record_costs_few_posts_and_no_other_record() -> None:
    from stablessm_core.report.frames import frame

    records = [b"%d" % i for i in range(1000)]
    server: Any = Kept(refuses=(b"333", b"999"))
    frames = Frames(server, server.open_run({}))
    data = b"".join(map(frame, records))
    while data:
        data = data[frames.send(data) :]
    assert server.records == [r for r in records if r not in server.refuses]
    assert (frames.refused, frames.last_refusal) == (2, "too many")
    assert server.posts < 60
