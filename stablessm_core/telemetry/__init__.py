"""The recorded numbers of a training run: series, blocks and messages, derived columns, detectors and alerts."""
