"""What the supervisor of a run hears from its training process."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any, cast

from server.lifecycle import transitions as lifecycle
from server.settings import Settings
from worker.pipe import Pipe
from worker.supervision import Supervision


class EndsUnseen:
    """A training process that reports its failure and ends after the supervisor has looked for a message, and before the
    supervisor looks whether the process is alive. On a busy machine the time between is long enough for that."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        self.pipe, self._end = Pipe(mine), Pipe(theirs)  # the other end stays open, as if a process started by it kept it

    def is_alive(self) -> bool:
        self._end.send({"event": "failed", "reason": "MissingData: words.txt", "fault": "data"})
        return False


def test_the_last_words_of_a_process_that_ends_while_nobody_listens_are_heard(tmp_path: Path) -> None:
    claim = lifecycle.Claim(1, 1, {}, ())
    nothing = cast(Any, None)
    supervision = Supervision(
        claim,
        cast(Any, EndsUnseen()),
        nothing,
        Settings(data_dir=tmp_path),
        0,
        nothing,
        threading.Event(),
        nothing,
        nothing,
        nothing,
    )
    supervision._follow()
    assert (supervision._failure, supervision._fault) == ("MissingData: words.txt", "data")
