"""The live stream: one broadcaster per process reads the new events of runs and sends them to all viewers."""
