"""The live stream: one hub per process that tails runs and feeds all viewers."""
