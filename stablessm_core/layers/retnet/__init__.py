"""RetNet's layer: multi-scale retention, whose decays are fixed."""
