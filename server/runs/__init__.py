"""The life of a run, from its submission to its deletion, and what is told about it."""
