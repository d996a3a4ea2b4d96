"""Configuration of `hyena`: the mixer's options, including the section of the layer that replaces its long convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Union

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from stablessm_core.maps import default_eigenvalue_range
from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.layers.dss import Dss
from stablessm_core.spec.layers.l2ru import L2ru
from stablessm_core.spec.layers.lru import Lru
from stablessm_core.spec.layers.s4 import S4
from stablessm_core.spec.layers.s4d import S4d
from stablessm_core.spec.layers.s5 import S5
from stablessm_core.spec.layers.stable_ssm import StableSsm

# the possible inner layers: every layer whose recurrence does not depend on its input
INNER: tuple[type[LayerSection], ...] = (
    StableSsm,
    Lru,
    L2ru,
    S4d,
    S4,
    S5,
    Dss,
)

if TYPE_CHECKING:
    AnyInner = LayerSection
else:
    AnyInner = Annotated[Union[INNER], Field(discriminator="name")]  # noqa: UP007 - made from a tuple


class Hyena(LayerSection):
    """Projections, short convolutions and two products around a state-space layer (Hyena, arXiv 2302.10866; order 2, H3's form).

    The inner layer determines the possible maps and the initial eigenvalues. As an inner layer, `stable_ssm` runs in
    discrete time, as in the language models of its paper.
    """

    title: ClassVar[str] = "Hyena mixer"
    equation: ClassVar[str] = "(x0, x1, v) = conv3(W_in u),  y = W_out (x0 * SSM(x1 * v))"
    source: ClassVar[str] = "Hyena, arXiv 2302.10866; around a state-space model: StableSSM, arXiv 2311.14495, section 4.3"
    family: ClassVar[str] = "around another layer"
    taps: ClassVar[int] = 3

    name: Literal["hyena"] = "hyena"
    inner: AnyInner = Field(
        default_factory=StableSsm,
        description="The inner layer with its options. For stable_ssm, null means 64 states and the identity as activation.",
    )

    @field_validator("inner")
    @classmethod
    def _linear(cls, inner: LayerSection) -> LayerSection:
        if not isinstance(inner, StableSsm):
            return inner
        given = {"d_state": inner.d_state or 64, "activation": inner.activation or "identity"}
        return inner.model_copy(update=given)

    @property
    def map_time(self) -> Literal["continuous", "discrete"] | None:  # type: ignore[override]
        return "discrete" if isinstance(self.inner, StableSsm) else self.inner.map_time

    def time_of_map(self) -> Literal["continuous", "discrete"] | None:
        return "discrete" if isinstance(self.inner, StableSsm) else self.inner.time_of_map()

    @property
    def native(self) -> str:  # type: ignore[override]
        return self.inner.native

    def check(self, d_model: int) -> None:
        try:
            self.inner.check(d_model)
        except PydanticCustomError as error:
            context = dict(error.context or {})
            raise PydanticCustomError(
                error.type, error.message_template, {**context, "field": f"inner.{context.get('field')}"}
            ) from None

    def eigenvalues(self, d_model: int) -> int:
        return self.inner.eigenvalues(d_model)

    def parameters(self, d_model: int) -> int:
        projections = 3 * d_model * (d_model + 1) + d_model * (d_model + 1)
        inner = self.inner.parameters(d_model) - self.inner.readout(d_model)
        return projections + 3 * d_model * (self.taps + 1) + inner

    def activations(self, d_model: int) -> int:
        return max(3 * d_model, self.inner.activations(d_model))

    def initial_range(self, d_model: int) -> tuple[float, float] | None:
        if isinstance(self.inner, StableSsm):
            return self.inner.eigenvalue_range or default_eigenvalue_range("discrete")
        return self.inner.initial_range(d_model)
