"""How a process ends, and what its runs report then.

An uncaught exception, `sys.exit`, Ctrl-C, SIGTERM and the normal end give every open run its last status. In a notebook or at a
prompt an exception ends a cell and not the process, and in a thread it ends the thread: it becomes the cause of a run if the run
reports nothing after it. A forked child writes nothing: its runs become inert at the fork. `os._exit` and SIGKILL cannot be seen;
then the server notices the silence.
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
    """A run that must hear of the end of its process. at_exit: its status and cause if the process ends normally. thread: the
    thread that reported last."""

    at_exit: tuple[str, str]
    thread: int | None

    @property
    def reported(self) -> int:
        """How much the program has reported so far: it grows with each step and each value."""

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
        # of each run: an exception that did not end the process, and how much the run had reported then
        self._troubles: weakref.WeakKeyDictionary[Any, tuple[tuple[str, str], int]] = weakref.WeakKeyDictionary()
        self._last_error: BaseException | None = None  # what the interpreter had shown before the first run
        self._shell: Any = None
        self._excepthook: Any = None
        self._thread_hook: Any = None
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
        self._thread_hook, threading.excepthook = threading.excepthook, self._on_thread_exception
        self._ours = (sys.excepthook, sys.exit, threading.excepthook)
        self._last_error = getattr(sys, "last_value", None)
        self._shell = _notebook()
        if self._shell is not None:
            self._shell.events.register("post_run_cell", self._after_cell)
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
        if threading.excepthook is self._ours[2]:
            threading.excepthook = self._thread_hook
        if self._shell is not None:
            with suppress(ValueError):
                self._shell.events.unregister("post_run_cell", self._after_cell)
        self._shell = None
        self._restore_signal()

    def _restore_signal(self) -> None:
        if self._signal is not None:
            with suppress(ValueError, OSError):
                if signal.getsignal(signal.SIGTERM) == self._signal:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._signal = None

    def _on_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _is_prompt():
            self._trouble(cause_of(kind, error))
        else:
            self._cause = cause_of(kind, error)
        self._excepthook(kind, error, trace)

    def _on_thread_exception(self, args: Any) -> None:
        if args.exc_type is not SystemExit:
            status, cause = cause_of(args.exc_type, args.exc_value)
            name = getattr(args.thread, "name", "")
            self._trouble((status, f"in the thread {name[:60]}: {cause}"), getattr(args.thread, "ident", None))
        self._thread_hook(args)

    def _after_cell(self, result: Any = None) -> None:
        """A cell of a notebook has ended."""
        error = getattr(result, "error_before_exec", None) or getattr(result, "error_in_exec", None)
        if error is not None and not isinstance(error, SystemExit):
            status, cause = cause_of(type(error), error)
            self._trouble((status, f"in a cell of the notebook: {cause}"))

    def _trouble(self, cause: tuple[str, str], thread: int | None = None) -> None:
        """An exception that does not end the process. thread: only the runs of this thread are in trouble; None means all."""
        for run in list(self._runs):
            if thread is None or run.thread == thread:
                self._troubles[run] = cause, run.reported

    def _cause_of(self, run: Any) -> tuple[str, str]:
        """The status and cause of a run that is still open when the process ends normally."""
        cause, reported = self._troubles.get(run, (None, -1))
        if cause is not None and reported == run.reported:
            return cause
        shown = getattr(sys, "last_value", None)
        if shown is not None and shown is not self._last_error and not _is_prompt() and self._shell is None:
            return cause_of(type(shown), shown)  # another program's hook has received the exception that ended this one
        at_exit: tuple[str, str] = run.at_exit
        return at_exit

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
            run.end(*(self._cause_of(run) if self._cause is None or self._cause[0] == "finished" else self._cause))

    def _before_fork(self) -> None:
        for run in list(self._runs):
            run.prepare_fork()

    def _in_child(self) -> None:
        for run in list(self._runs):
            run.become_inert()
        self._runs.clear()
        if self._installed:
            self._remove()


def _is_prompt() -> bool:
    """Whether a person types the program, so that an exception does not end it."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _notebook() -> Any:
    """The running IPython shell, of a notebook or a terminal; None if there is none."""
    ipython = sys.modules.get("IPython")
    found = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return found if hasattr(getattr(found, "events", None), "register") else None


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
