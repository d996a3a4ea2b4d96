"""Quantities known before training: slopes of maps, memory, and the initial eigenvalues of layers (`theory.systems`)."""

from stablessm_core.theory.memory import memory_function, nearest_memory, polynomial_memory
from stablessm_core.theory.slopes import Curves, curves, gentlest_maps, gradient_over_weight, relative_slope_at

__all__ = [
    "Curves",
    "curves",
    "gentlest_maps",
    "gradient_over_weight",
    "memory_function",
    "nearest_memory",
    "polynomial_memory",
    "relative_slope_at",
]
