"""Which optimizer trains which of the recorded tensors. This may change in mid-run."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from stablessm_core.outside.hook import parameters_of
from stablessm_core.outside.sharded import origin
from stablessm_core.telemetry.detectors.steps import Steps, names_of, steps_of


class Owners:
    """The known optimizers by number, and the number of the one that trains each recorded tensor.

    of: for each tensor its optimizer; a tensor that no optimizer trains has the first of the others. used: those whose steps make
    rows. unowned: the identities of the tensors that no optimizer trains, such as those of an averaged copy.
    """

    def __init__(self) -> None:
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._named = 0  # how many the program has named
        self._main = 0  # whose steps make rows if nobody trains a recorded tensor
        self.of: list[int] = []
        self.used: set[int] = {0}
        self.unowned: set[int] = set()

    def __len__(self) -> int:
        return len(self._optimizers)

    def name(self, optimizers: Sequence[Optimizer]) -> None:
        """Know the optimizers that the program trains with from the start."""
        self._optimizers += map(weakref.ref, optimizers)
        self._named = len(self._optimizers)

    def add(self, optimizer: Optimizer) -> None:
        """Know an optimizer that has taken a step of parameters that were looked for."""
        main = self._optimizers[self._main]() if self._optimizers else None
        if main is not None and parameters_of(main) & parameters_of(optimizer):
            self._main = len(self._optimizers)
        self._optimizers.append(weakref.ref(optimizer))
        if main is None:
            self._main = len(self._optimizers) - 1

    def assign(self, tensors: Sequence[Tensor], stepping: int) -> bool:
        """Find the optimizer of each tensor again. True if that has changed. stepping: the one that takes a step now; it trains
        every tensor that it has, also if another one has it too."""
        living = [(i, o) for i, ref in enumerate(self._optimizers) if (o := ref()) is not None]
        living.sort(key=lambda each: (self._may_take_over(stepping) and each[0] == stepping, each[0]))
        trained = {p: number for number, o in living for p in parameters_of(o)}
        known = {trained[origin(t)] for t in tensors if origin(t) in trained}
        if not known and all(number != self._main for number, _ in living):
            self._main = stepping
        first = min(known, default=self._main)
        of, before = [trained.get(origin(t), first) for t in tensors], (self.of, self.used, self.unowned)
        self.of, self.used = of, set(of) or {first}
        self.unowned = {id(t) for t in tensors if origin(t) not in trained}
        return before != (self.of, self.used, self.unowned)

    def trains(self, number: int, tensors: Sequence[Tensor]) -> bool:
        """Whether this optimizer could make rows, although another one does: it has a recorded tensor, or the other is gone."""
        optimizer = self._optimizers[number]()
        if optimizer is None:
            return False
        if all(one >= len(self) or self._optimizers[one]() is None for one in self.used):
            return True
        mine = parameters_of(optimizer)
        return self._may_take_over(number) and any(origin(t) in mine for t in tensors)

    def steps(self, *, clips: bool) -> Steps:
        """Whether the steps of the recorded weights grow with the gradient. clips: True if the gradient is clipped to a norm."""
        living = [o for number in self.used if number < len(self) and (o := self._optimizers[number]()) is not None]
        return steps_of([" ".join(names_of(o)) for o in living], clips=clips)

    def _may_take_over(self, number: int) -> bool:
        """False for two optimizers that the program named together: there the later one has the tensors that both have."""
        return number >= self._named or any(one >= self._named for one in self.used)
