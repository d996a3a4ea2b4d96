"""RWKV-6's time mixing: matrix states whose rows fade by eigenvalues that the input decides."""
