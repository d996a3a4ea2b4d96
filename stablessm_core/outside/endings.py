"""How a process ends, and what its runs report then.

An uncaught exception, `sys.exit`, Ctrl-C, SIGTERM and the normal end give every open run its last status. A forked child writes
nothing: its runs become inert at the fork. `os._exit` and SIGKILL cannot be seen; then the server notices the silence.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Protocol

TERMINATED = 128 + signal.SIGTERM


class Ends(Protocol):
    """A run that must hear of the end of its process. at_exit: its status and cause if the process ends normally."""

    at_exit: tuple[str, str]

    def prepare_fork(self) -> None:
        """The process forks next."""

    def end(self, status: str, cause: str) -> None:
        """Report this status. Never raises, and takes at most a few seconds."""

    def become_inert(self) -> None:
        """Write nothing from now on, because this process is a forked child."""


class Endings:
    """The open runs of this process. The hooks are installed when the first run is added, and removed after the last."""

    def __init__(self) -> None:
        self._runs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._cause: tuple[str, str] | None = None
        self._installed = self._fork_hook = False
        self._excepthook: Any = None
        self._exit: Any = None
        self._signal: Any = None

    def add(self, run: Ends) -> None:
        """Tell this run when the process ends."""
        self._runs.add(run)
        if not self._installed:
            self._install()

    def discard(self, run: Ends) -> None:
        """Forget a run that has ended."""
        self._runs.discard(run)
        if self._installed and not self._runs:
            self._remove()

    def _install(self) -> None:
        self._installed = True
        self._cause = None
        atexit.register(self._at_exit)
        self._excepthook, sys.excepthook = sys.excepthook, self._on_exception
        self._exit, sys.exit = sys.exit, self._on_exit
        self._ours = (sys.excepthook, sys.exit)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            with suppress(ValueError, OSError):
                signal.signal(signal.SIGTERM, self._on_sigterm)
                self._signal = self._on_sigterm
        if not self._fork_hook and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_child=self._in_child)
            self._fork_hook = True

    def _remove(self) -> None:
        self._installed = False
        atexit.unregister(self._at_exit)
        if sys.excepthook is self._ours[0]:
            sys.excepthook = self._excepthook
        if sys.exit is self._ours[1]:
            sys.exit = self._exit
        self._restore_signal()

    def _restore_signal(self) -> None:
        if self._signal is not None:
            with suppress(ValueError, OSError):
                if signal.getsignal(signal.SIGTERM) == self._signal:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._signal = None

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._cause = cause_of(kind, error)
        self._excepthook(kind, error, trace)

    def _on_exit(self, code: Any = None, /) -> Any:
        if threading.current_thread() is threading.main_thread():  # elsewhere it ends the thread, not the program
            self._cause = cause_of(SystemExit, SystemExit(code))
        self._exit(code)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        # ends the program as an uncaught exception does, so that `finally` blocks and exit handlers run
        self._cause = ("cancelled", "SIGTERM")
        raise SystemExit(TERMINATED)

    def _at_exit(self) -> None:
        for run in list(self._runs):
            run.end(*(run.at_exit if self._cause is None or self._cause[0] == "finished" else self._cause))

    def _before_fork(self) -> None:
        for run in list(self._runs):
            run.prepare_fork()

    def _in_child(self) -> None:
        for run in list(self._runs):
            run.become_inert()
        self._runs.clear()
        if self._installed:
            self._remove()


def reason_of(status: str, cause: str, step: int, dropped: int, without_row: Sequence[str]) -> str:
    """How a run ended, in words; "" if it finished and everything is recorded.

    cause: why it ended, "" if its program ended normally. dropped: the steps whose rows are lost. without_row: what else the
    program reported that is not recorded.
    """
    if not cause and not without_row:
        return ""
    # the message of an exception may be a sentence
    joint = f"{cause.removesuffix('.')}, after" if ": " in cause else f"{cause or status} after"
    missing = [f"{dropped:,} steps missing"] if dropped or not without_row else []
    return "; ".join([f"{joint} step {step:,}", *missing, *without_row])


def cause_of(kind: type[BaseException], error: BaseException | None) -> tuple[str, str]:
    """The status of a run that this exception ended, and its cause in words; no cause if the program ended normally."""
    if issubclass(kind, KeyboardInterrupt):
        return "cancelled", "Ctrl-C"
    if issubclass(kind, SystemExit):
        code = getattr(error, "code", None)
        if code in (None, 0, False):
            return "finished", ""
        return ("cancelled", "SIGTERM") if code == TERMINATED else ("failed", f"exit code {str(code)[:200]}")
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # noqa: BLE001 - the program's own exception has a broken __str__
        lines = []
    return "failed", f"{kind.__name__}: {lines[-1][:300]}" if lines else kind.__name__


ENDINGS = Endings()
