"""What a layer says of itself without torch: its part of the configuration, its sizes, and which maps it can have.

Server and worker both read this. The part that computes is named by `built_by`; only workers import it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict

from stablessm_core.section import Section


class LayerSection(Section):
    """Base of every layer's section of the configuration. A subclass sets `name: Literal["..."]` and adds its options.

    built_by: "module:function", the function that gives the layer (see `layers.building`). title, equation, source: for people:
    what the layer is called, its recurrence in one line, the paper it is from. map_time: the time of the map lambda = f(w) that
    gives its eigenvalues or their rates, where any map may; None where none can be chosen. native: the published map.
    """

    model_config = ConfigDict(defer_build=True)  # each is built once, inside RunConfig

    name: str
    built_by: ClassVar[str]
    title: ClassVar[str]
    equation: ClassVar[str]
    source: ClassVar[str]
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = None
    native: ClassVar[str] = ""

    def time_of_map(self) -> Literal["continuous", "discrete"] | None:
        """`map_time`; None where an option leaves no map to choose."""
        return self.map_time

    def check(self, d_model: int) -> None:
        """Raises `not_allowed` naming the option where this layer cannot have that width, one that does not divide say."""

    def eigenvalues(self, d_model: int) -> int:
        """Eigenvalues that are recorded of one layer, its first record's."""
        raise NotImplementedError(f"{type(self).__name__} does not define eigenvalues()")

    def parameters(self, d_model: int) -> int:
        """Trained numbers of one layer, exactly."""
        raise NotImplementedError(f"{type(self).__name__} does not define parameters()")

    def readout(self, d_model: int) -> int:  # noqa: ARG002 - for subclasses
        """Of its parameters those of the readout at its end, its attribute `readout`, which a mixer around it leaves out."""
        return 0

    def activations(self, d_model: int) -> int:
        """About how many numbers per step of a sequence its widest intermediate keeps for the backward pass."""
        raise NotImplementedError(f"{type(self).__name__} does not define activations()")

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - for subclasses
        """Smallest and largest initial lambda, in `map_time`, that a map must reach; None where no map can be chosen."""
        return None
