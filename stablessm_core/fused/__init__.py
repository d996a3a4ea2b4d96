"""The whole layer in one operator that keeps no states: makes them again in the backward pass."""
