"""How long a training step takes: launched in every way, and beside another revision and JAX."""
