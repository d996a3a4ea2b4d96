"""Gated DeltaNet's layer: the delta rule with one eigenvalue per head, which the input gates, and a matrix as state."""
