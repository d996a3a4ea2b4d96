"""The half of a layer that does not need torch: its options, its sizes, and the maps that it can have.

The server and the workers import this half. `built_by` names the torch half, which only workers import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from stablessm_core.spec.section import Section, not_allowed

FAMILIES = ("fixed in time", "varying with the input", "with a matrix state", "around another layer")


class LayerSection(Section):
    """Base class of a layer's section of the configuration. A subclass sets `name: Literal["..."]` and adds its options.

    title, equation, source: texts for users: the layer's name, its recurrence in one line, and its paper.
    family: one of FAMILIES. The family only determines the layer's position in lists.
    map_time: the time, continuous or discrete, of the map lambda = f(w) that gives the eigenvalues or their rates; None if users
    cannot choose a map.
    native: the map that the layer's paper uses.
    built_by: "module:function" that builds the layer (see `layers.building`). Default for a module of `spec.layers`: the
    function `build` in the module of the same name in `layers`.
    """

    model_config = ConfigDict(defer_build=True)  # pydantic builds each section once, inside RunConfig

    name: str
    title: ClassVar[str]
    equation: ClassVar[str]
    source: ClassVar[str]
    family: ClassVar[str] = FAMILIES[0]
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = None
    native: ClassVar[str] = ""
    built_by: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        package, found, module = cls.__module__.partition(".spec.layers.")
        if found and "built_by" not in vars(cls):
            cls.built_by = f"{package}.layers.{module}:build"

    def time_of_map(self) -> Literal["continuous", "discrete"] | None:
        """`map_time`; None if users cannot choose a map with these options of the layer."""
        return self.map_time

    def check(self, d_model: int) -> None:
        """Raise `not_allowed`, naming the option, if the layer cannot have this width, for example because of its heads."""

    def eigenvalues(self, d_model: int) -> int:
        """The number of eigenvalues in the layer's first record."""
        raise NotImplementedError(f"{type(self).__name__} does not define eigenvalues()")

    def parameters(self, d_model: int) -> int:
        """The exact number of trainable numbers in one layer."""
        raise NotImplementedError(f"{type(self).__name__} does not define parameters()")

    def readout(self, d_model: int) -> int:  # noqa: ARG002 - for subclasses
        """The number of parameters in the layer's attribute `readout`, which a mixer around the layer removes."""
        return 0

    def activations(self, d_model: int) -> int:
        """Approximate size of the widest tensor kept for the backward pass, in numbers per time step."""
        raise NotImplementedError(f"{type(self).__name__} does not define activations()")

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - for subclasses
        """The smallest and largest initial lambda, in `map_time`. A map must reach both values. None if users cannot choose a
        map."""
        return None


SmallestStep = Annotated[float, Field(gt=0, le=100, description="Smallest initial step size.")]
LargestStep = Annotated[float, Field(gt=0, le=100, description="Largest initial step size.")]


class StepSizes(LayerSection):
    """Base class for layers that train their step sizes. A subclass declares the options dt_min and dt_max itself."""

    if TYPE_CHECKING:
        dt_min: float
        dt_max: float

    @model_validator(mode="after")
    def _steps_are_in_order(self) -> Self:
        if self.dt_min > self.dt_max:
            raise not_allowed("dt_max", self.dt_max, f"at least dt_min = {self.dt_min}")
        return self
