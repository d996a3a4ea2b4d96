"""Blocks and whole networks computed by compiled kernels on a CPU, forward and backward in a few calls.

`small_blocks` and `large_blocks` compute the halves of a residual block. `blocks` makes each half one node of autograd's graph,
and `network` makes a whole small network one node. `step_buffers` repeats the training steps of a small network in fixed memory.
"""
