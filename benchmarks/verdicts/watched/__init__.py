"""Faults in loops that a user wrote: small models in plain PyTorch, recorded by `stablessm.watch` into a file."""
