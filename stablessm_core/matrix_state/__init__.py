"""Linear recurrences with a matrix as the state of each head: S_t = (decayed S_{t-1}) + k_t v_t^T, o_t = S_t^T q_t.

The recurrences are computed in chunks as matrix products. Time and memory grow linearly with the length, and only the states at
the ends of the chunks are stored. There are three kinds of decay: one number per head and step (`scalar_decay`), one per key
channel (`vector_decay`), and one per head with the delta rule, which removes the value stored under the key before it writes
the new value (`delta_rule`). Each function returns (o, S after the last step). Symbols and axes are the same in all functions:

q, k: (batch, length, heads, keys). v: (batch, length, heads, values). S: (batch, heads, keys, values); S_0 is `initial`, or
zero if `initial` is None. log_decay: ln of the decay, at most 0. Results are accurate for all values down to -inf, because no
exponential has a positive exponent. float64 inputs are computed in float64, all other dtypes in float32, with or without
autocast. backend: as in `linear_scan`; "reference" computes the recurrence step by step. All functions support derivatives of
any order and work under torch.func.

Sources: Mamba-2 (arXiv 2405.21060), section 6; GLA (arXiv 2312.06635), section 4; Gated DeltaNet (arXiv 2412.06464), section 3.3.
"""

from __future__ import annotations

from stablessm_core.matrix_state.delta_rule import delta_rule
from stablessm_core.matrix_state.recurrence import delta_step, step
from stablessm_core.matrix_state.scalar_decay import scalar_decay
from stablessm_core.matrix_state.vector_decay import vector_decay

__all__ = ["delta_rule", "delta_step", "scalar_decay", "step", "vector_decay"]
