"""What the paper's theory says about maps and diagonal systems: gradient bounds, stability, perturbation and memory.

`theory.systems` has the initial eigenvalues of layers.
"""

from stablessm_core.theory.bounds import gradient_bound, output_bound, published_gradient_bound
from stablessm_core.theory.decay import DecayFit, fit_decay
from stablessm_core.theory.memory import memory_function, nearest_memory, polynomial_memory
from stablessm_core.theory.perturbation import PerturbationError, kernel_error, perturbation_error
from stablessm_core.theory.slopes import Curves, curves, gentlest_maps, gradient_over_weight, relative_slope_at
from stablessm_core.theory.stable_maps import MapStability, largest_g_of_best, stability_of_map

__all__ = [
    "Curves",
    "DecayFit",
    "MapStability",
    "PerturbationError",
    "curves",
    "fit_decay",
    "gentlest_maps",
    "gradient_bound",
    "gradient_over_weight",
    "kernel_error",
    "largest_g_of_best",
    "memory_function",
    "nearest_memory",
    "output_bound",
    "perturbation_error",
    "polynomial_memory",
    "published_gradient_bound",
    "relative_slope_at",
    "stability_of_map",
]
