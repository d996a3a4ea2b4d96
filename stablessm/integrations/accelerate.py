"""A tracker for accelerate: `Accelerator(log_with=StableSSMTracker(model, optimizer, project="hybrid"))`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stablessm.integrations.starting import WatchArguments, check, quiet, start
from stablessm_core.outside.run import Run

try:
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise ImportError("stablessm.integrations.accelerate needs accelerate: pip install accelerate") from error

if TYPE_CHECKING:
    from typing import Unpack


class StableSSMTracker(GeneralTracker):  # type: ignore[misc]
    """Watches a model whose loop uses accelerate. Only the first process reports.

    model, optimizer: before or after `accelerator.prepare`; without them only logged numbers are reported. The other arguments
    are those of `stablessm.watch`. The run starts when `init_trackers` passes on its config, or when the tracker is first used;
    call `init_trackers` before the first step. Raises TypeError or ValueError for a wrong argument.
    """

    name = "stablessm"
    requires_logging_directory = False
    main_process_only = False  # every process gathers sharded weights; only the run of the first one reports

    def __init__(self, model: Any = None, optimizer: Any = None, **arguments: Unpack[WatchArguments]) -> None:
        super().__init__()
        check("StableSSMTracker", arguments)
        if (model is None) != (optimizer is None):
            raise ValueError(f"{'model' if model is None else 'optimizer'} is None; give both, or neither")
        self._model, self._optimizer, self._arguments = model, optimizer, arguments
        self._run: Run | None = None

    @property
    def tracker(self) -> Run:
        """The run, also for `accelerator.get_tracker("stablessm", unwrap=True)`."""
        return self._begin({}) if self._run is None else self._run

    @quiet
    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        if self._run is None:
            self._begin(values)

    @quiet
    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        self.tracker.log(values, step=step)

    @quiet
    def finish(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _begin(self, values: Mapping[str, Any]) -> Run:
        self._run = run = start(self._model, self._optimizer, self._arguments, values)
        self._model = self._optimizer = None
        return run
