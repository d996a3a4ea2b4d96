"""How long does a training step take with each way to launch the step, and compared with another revision and with JAX?"""
