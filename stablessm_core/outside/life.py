"""The life of a run that another program trains and this process reports: its start, what it writes and sends, and its end.

After `begin` has returned, nothing here raises into the program, and nothing waits for the network or for a device.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from stablessm_core.outside.arguments import Arguments
from stablessm_core.outside.endings import ENDINGS, reason_of
from stablessm_core.outside.forks import ForkCounter
from stablessm_core.outside.metrics import Logged, messages_of
from stablessm_core.outside.sink import OutsideSink
from stablessm_core.report.link import Uplink
from stablessm_core.report.messages import EndMessage
from stablessm_core.report.outbox import SUFFIX, Outbox
from stablessm_core.telemetry.detectors.alert import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import RECORDING_CHANGED
from stablessm_core.telemetry.metrics import MAX_METRICS
from stablessm_core.telemetry.series import TRAIN_LOSS
from stablessm_core.telemetry.sink import Flush

if TYPE_CHECKING:
    from stablessm_core.outside.modules import Layer
    from stablessm_core.outside.recording import Recording
    from stablessm_core.outside.sharded import Gathering

TICK = 0.05  # seconds between two looks at what waits
SETTLED = 0.5  # seconds without a change, after which a new configuration is sent
FIRST_ANSWER = 3.0  # seconds that the start of a run waits for the server
END_SECONDS = 4.5  # that the end of a run may take
RECORDING_SECONDS, PACER_SECONDS = (
    {"online": 1.0, "offline": 3.0},
    0.5,
)  # of these, for the flush thread and for the thread that looks at what waits
MAX_SENTENCES, MAX_LOGGED = 30, 100_000


class RunLife:
    """What happens to a run behind the methods that the program calls: see `Run`."""

    def __init__(self, arguments: Arguments, *, live: bool = True) -> None:
        self.id, self.mode = arguments.id, arguments.mode if live else "disabled"
        self._arguments, self._live = arguments, live and arguments.mode != "disabled"
        self._said: set[str] = set()
        self._recording: Recording | None = None
        self.gathering: Gathering | None = None  # of sharded parameters, also in processes whose run records nothing
        # what waits for the thread that writes it
        self._logged: deque[Logged] = deque(maxlen=MAX_LOGGED)
        self._alerts: deque[Alert] = deque(maxlen=MAX_LOGGED)
        self._log_step = arguments.from_step or 0
        self._logged_loss: float | None = None  # the last loss that the program logged, for a loop that calls no `loss`
        self._uplink: Uplink | None = None
        self._how: dict[str, Any] = {"every": arguments.every, "length": arguments.length}
        self._layers: list[dict[str, Any]] = []
        self._opening_changed: float | None = None  # when, if the server does not know yet
        self._names: set[str] = set()  # of the metrics that were logged
        self._alone = False  # True after `_take_over_losses` has said so
        self.foreign_optimizer = ""  # the class of an optimizer that is not torch's
        self._forks = ForkCounter()
        self._calls = 0  # of the methods that report values
        self.thread: int | None = threading.get_ident()  # that reported last
        self.forked = False  # True in a forked child, which records nothing
        self._end_lock = threading.Lock()
        self.at_exit = "finished", ""  # the status and cause if the program ends normally and the run is still open
        self._closing = threading.Event()
        if self._live:
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
            path = arguments.dir / f"{stamp}-{arguments.id[:8]}-{os.getpid()}{SUFFIX}"
            self._outbox = Outbox(path, self._opening(), self.say)
            self._sink = OutsideSink(self._outbox)

    @property
    def url(self) -> str | None:
        """The address of the run's page."""
        return None if self._uplink is None or self._uplink.opened is None else self._uplink.opened.url

    @property
    def path(self) -> str | None:
        """The run's file."""
        return None if self.mode == "disabled" or self._outbox.path is None else str(self._outbox.path)

    @property
    def every(self) -> int:
        """Every n-th step is stored."""
        return self._arguments.every

    @property
    def length(self) -> int | None:
        """The length of the sequences over which a state runs; None if it is unknown."""
        return self._arguments.length

    @property
    def step(self) -> int:
        """The number of optimizer steps so far; without an optimizer, the number of `log` calls."""
        if self._recording is None or self._recording.alone:
            return self._log_step
        if not self._recording.knows_steps:
            return self._log_step + self._recording.losses.waiting
        return self._recording.step

    def end(self, status: str, cause: str) -> None:
        """Report the last status and close everything. Never raises; a second call does nothing."""
        if self.gathering is not None:
            self.gathering.remove()
        if not self._live or not self._end_lock.acquire(blocking=False):
            return
        try:
            self._end(status, cause)
        except Exception as error:  # noqa: BLE001 - the end of a run must not end the program differently
            self.say(f"the end of the run could not be reported ({error!r})")
        finally:
            self._live = False
            self._forks.close()
            ENDINGS.discard(self)

    def _end(self, status: str, cause: str) -> None:
        ends = monotonic() + END_SECONDS
        self._closing.set()
        try:
            self._finish_writing(status, cause)
        finally:
            self._finish_sending(max(0.5, ends - monotonic()))

    def _finish_writing(self, status: str, cause: str) -> None:
        for write in (self._send_opening, self._finish_recording, self._send_logged):
            try:
                write()
            except Exception as error:  # noqa: BLE001 - after an error of the device, the end must still be reported
                self.say(f"the last numbers could not be read ({type(error).__name__}: {error})")
        dropped = 0 if self._recording is None else self._recording.dropped
        result: dict[str, Any] = {**self._final_numbers(), "telemetry_dropped": dropped}
        loss = None if self._recording is None else self._recording.latest.get(TRAIN_LOSS)
        if (loss := self._logged_loss if loss is None else loss) is not None:
            result["train_loss"] = loss
        reason = reason_of(status, cause, self.step, dropped, self._without_row(status))
        self._sink.put(EndMessage(status, reason[:2000], result))

    def _without_row(self, status: str) -> list[str]:
        """What the program reported and no row holds, in words."""
        found: list[str] = []
        losses = None if self._recording is None or self._recording.alone else self._recording.losses
        # a run that was interrupted in a step has the losses of this step, and no row for them
        if losses is not None and losses.lost and not (status != "finished" and losses.interrupted):
            them, have = ("loss", "has") if losses.lost == 1 else ("losses", "have")
            found.append(f"{losses.lost:,} {them} after it {have} no row because {losses.lost_because}")
            known = losses.lost_because in self._said  # the user has read this sentence when it became true
            self.say(f"{losses.lost:,} {them} {have} no row{'' if known else f' because {losses.lost_because}'}")
        if count := self._forks.counted():
            found.append(f"{count:,} values of forked children are not recorded")
            self.say(f"{count:,} values that forked children reported are not recorded")
        return found

    def _final_numbers(self) -> dict[str, float]:
        """What the program reports as its result."""
        return {}

    def _finish_recording(self) -> None:
        try:
            if self._recording is not None:
                self._recording.finish(RECORDING_SECONDS[self.mode])
                self._take_over_losses()
        finally:
            self._pacer.join(PACER_SECONDS)

    def _take_over_losses(self) -> None:
        """If no optimizer has taken a step, each loss that has come so far is a step of its own."""
        recording = self._recording
        if recording is None or not recording.alone:
            return
        before = recording.losses.before[:]
        recording.losses.before.clear()
        if not self._alone:
            self._alone = True
            known = f"; optimizer is a {self.foreign_optimizer}, which is none" if self.foreign_optimizer else ""
            each = "; each loss is recorded as a step" if before else ""
            self.say(
                f"no torch optimizer has trained the watched model, so its eigenvalues are not recorded{known}{each}. Give "
                "`watch` the torch optimizer that changes the weights, or let yours inherit from torch.optim.Optimizer"
            )
        for loss in before:
            self._log_step += 1
            self._logged.append((self._log_step, {TRAIN_LOSS: loss}))

    def _finish_sending(self, seconds: float) -> None:
        stored = self._uplink is not None and self._uplink.close(seconds)
        whole = stored and self._uplink is not None and not self._uplink.refused_frames
        self._said.clear()  # the last sentences are always said
        size, path = self._outbox.size, self._outbox.path
        lost = self._outbox.in_memory(0 if self._uplink is None else self._uplink.sent)
        self._outbox.close(delete=whole)
        if self._outbox.dropped:
            self.say(f"{self._outbox.dropped:,} records found no room and are lost")
        if self._uplink is not None and not stored:
            left = size - self._uplink.sent
            refused = (
                self._uplink.last_refusal
                and f"time was up after the server had refused some records: {self._uplink.last_refusal}"
            )
            why = self._uplink.failure or refused or "the server was too slow"
            sends = f"; `stablessm sync {path}` sends them" if path is not None and not lost else ""
            self.say(f"{left:,} bytes are not sent ({why}){sends}")
        if lost:
            kept = f"; `stablessm sync {path}` sends the others" if path is not None else ""
            self.say(f"{lost:,} bytes are lost, because they could not be written to a file{kept}")
        elif self._uplink is None and path is not None:
            self.say(f"the run is in {path}; `stablessm sync {path}` sends it to a server")

    @property
    def reported(self) -> int:
        """How much the program has reported so far: calls of the methods that report values, and steps."""
        return self._calls + (0 if self._recording is None else self._recording.step)

    def prepare_fork(self) -> None:
        """The process forks next: its children shall be able to count."""
        self._forks.open()

    def become_inert(self) -> None:
        """Write nothing in a forked child."""
        if self._live:
            self._live, self.forked = False, True
            if self._recording is not None:
                self._recording.become_inert()
            self._outbox.abandon()

    def begin(self, recording: Recording | None, how: Mapping[str, Any], layers: list[dict[str, Any]]) -> None:
        """Start to record and to send."""
        self._recording, self._how, self._layers = recording, {**self._how, **how}, layers
        opening = self._opening()
        self._outbox.reopen(opening)
        a = self._arguments
        if self.mode == "online" and a.url is not None:
            self._uplink = Uplink(self._outbox, opening, a.url, a.token, self.say, known=not a.id_given)
        self._pacer = threading.Thread(target=self._pace, name="stablessm-pacer", daemon=True)
        self._pacer.start()
        ENDINGS.add(self)
        self.say(self._where(layers))
        if recording is None:
            self._log_step = max(self._log_step, self.first_step())  # known after the server's answer
            if self._log_step == 0 and a.id_given and a.resume != "never" and self._uplink and self._uplink.opened is None:
                self.say("the server has not said after which step the run continues; steps that you do not name begin at 1")

    def record(self, recording: Recording, how: Mapping[str, Any], layers: list[dict[str, Any]]) -> None:
        """Record a model from now on, in a run that has begun without one."""
        self._recording, self._layers = recording, layers
        self.describe_training(how)
        self._send_opening()  # before the first row

    def describe_training(self, how: Mapping[str, Any]) -> None:
        """Add facts about how the model is trained. The server learns them a moment later."""
        self._how |= how
        self._opening_changed = monotonic()

    def _send_opening(self) -> None:
        """Open the run again if its opening request has changed: in its file, and on the server."""
        if self._opening_changed is None:
            return
        self._opening_changed = None
        opening = self._opening()
        if self._uplink is not None and self._uplink.opened is not None:
            opening["from_step"] = None  # the server has deleted the later steps already
        if not self._outbox.reopen(opening) and self._uplink is None:
            self.say("the file of the run is too long to change its configuration and description")
        if self._uplink is not None:
            self._uplink.open_again(opening)

    def first_step(self) -> int:
        """The number of optimizer steps that the run did before this process."""
        if self._arguments.from_step is not None:
            return self._arguments.from_step
        opened = None if self._uplink is None else self._uplink.opened
        if opened is None and self._recording is not None and self._arguments.id_given and self._arguments.resume != "never":
            self._recording.stop(
                "the server has not said after which step the run continues, so nothing is recorded; give from_step, "
                "the number of the last step"
            )
        return 0 if opened is None or self._arguments.resume == "never" else max(0, opened.next_step - 1)

    def say(self, sentence: str) -> None:
        """Tell the user one sentence on the terminal, once."""
        if sentence in self._said or len(self._said) >= MAX_SENTENCES:
            return
        self._said.add(sentence)
        try:
            sys.stderr.write(f"stablessm: {sentence}\n")
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):  # a closed terminal
            pass

    def within_names(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values whose names are among the first MAX_METRICS of the run, which is what a server stores."""
        new = values.keys() - self._names
        if len(self._names) + len(new) > MAX_METRICS:
            room = MAX_METRICS - len(self._names)
            kept = set([name for name in values if name in new][:room])
            self.say(f"log: a run has at most {MAX_METRICS:,} names of metrics; values under further names are not recorded")
            values = {name: value for name, value in values.items() if name not in new or name in kept}
        self._names |= values.keys()
        return values

    def tell(self, sentence: str, of: str = "") -> None:
        """Tell the user one sentence on the terminal and on the run's page. of: the tensor or optimizer that it is about."""
        self.say(sentence)
        alert = RECORDING_CHANGED.alert(step=self.step, message=sentence[:2000], tensor=of[:200])
        self._alerts.append(alert)

    def count_in_child(self) -> None:
        """A forked child reports a value. It is counted and not recorded, because the file belongs to the parent."""
        self._forks.count()
        self.say("this process was forked from the one that opened the run: what it reports is counted and not recorded")

    def _where(self, layers: list[dict[str, Any]]) -> str:
        what = (
            f"watching {sum(one['width'] for one in layers):,} eigenvalues in {len(layers):,} layers" if layers else "recording"
        )
        if self._uplink is not None and self._uplink.wait_for_answer(FIRST_ANSWER) and self.url:
            return f"{what}: {self.url}"
        why = f"{self._uplink.failure or 'the server has not answered yet'}; " if self._uplink is not None else ""
        return f"{what}: {why}{self.path or 'in memory only'}"

    def _opening(self) -> dict[str, Any]:
        a = self._arguments
        names = ("optimizer", "lr", "momentum", "nesterov", "grad_clip", "length", "every", "precision")
        return {
            "id": a.id,
            "project": a.project,
            "name": a.name,
            "config": a.config,
            "tags": a.tags,
            "how": {name: self._how.get(name) for name in names},
            "layers": self._layers,
            "total_steps": a.total_steps,
            "resume": a.resume,
            "from_step": a.from_step,
        } | ({"notes": a.notes} if a.notes else {})

    def _pace(self) -> None:
        sent = monotonic()
        while not self._closing.wait(TICK):
            try:
                if self._recording is not None:
                    self._recording.tick()
                if self._opening_changed is not None and monotonic() - self._opening_changed >= SETTLED:
                    self._send_opening()
                if (self._logged or self._alerts) and monotonic() - sent >= 2 * TICK:
                    self._send_logged()
                    sent = monotonic()
            except Exception as error:  # noqa: BLE001 - reported once, and tried again
                self.say(f"sending failed ({type(error).__name__}: {error})")

    def _send_logged(self) -> None:
        logged: list[Logged] = []
        while self._logged:
            logged.append(self._logged.popleft())
        for message in messages_of(logged):
            self._sink.put(message)
            if losses := message.values.get(TRAIN_LOSS):
                self._logged_loss = losses[-1]
        while self._alerts:
            self._sink.put(Flush([], [self._alerts.popleft()], self._sink.step, None))


def described(layer: Layer) -> dict[str, Any]:
    """What the server is told about a layer."""
    of = layer.eigenvalues
    return {"name": layer.name[:120], "path": layer.path[-200:], "width": of.width, "note": of.note}
