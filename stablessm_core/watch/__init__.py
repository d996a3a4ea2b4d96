"""Records the values of a run during training: what is watched, how a step is measured, and when blocks are sent."""
