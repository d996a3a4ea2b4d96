"""Mamba-2's layer: one eigenvalue per head, which the input gates, and a matrix as state."""
