"""Linear recurrences whose state is a matrix per head, S_t = (decayed S_{t-1}) + k_t v_t^T read by o_t = S_t^T q_t, as products
within chunks: time and memory grow with the length, and of the states only those at the chunks' ends are kept.

Three decays: one number per head and step (`scalar_decay`), one per key channel (`vector_decay`), and one per head together with
the delta rule, which takes out of the state what stands there under the key before it writes (`delta_rule`). Each returns
(o, S after the last step). Symbols and axes are the same everywhere:

q, k: (batch, length, heads, keys). v: (batch, length, heads, values). S: (batch, heads, keys, values); `initial`, S_0, is zero
where it is None. log_decay: ln of the decay, at most 0; any such number down to -inf is exact, for no positive exponent is ever
taken. Float64 is computed in float64, anything else in float32 whether autocast is on or not. backend: as in `linear_scan`;
"reference" is the recurrence itself, step by step. Differentiable any number of times; works under torch.func.

Sources: Mamba-2 (arXiv 2405.21060), section 6; GLA (arXiv 2312.06635), section 4; Gated DeltaNet (arXiv 2412.06464), section 3.3.
"""

from __future__ import annotations

from stablessm_core.matrix_state.delta_rule import delta_rule
from stablessm_core.matrix_state.recurrence import delta_step, step
from stablessm_core.matrix_state.scalar_decay import scalar_decay
from stablessm_core.matrix_state.vector_decay import vector_decay

__all__ = ["delta_rule", "delta_step", "scalar_decay", "step", "vector_decay"]
