"""Measuring a training run from the inside: what is recorded, how it leaves the device, when it raises an alert."""
