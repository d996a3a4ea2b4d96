"""The configuration of a run, with the options of every layer and task. This package does not import torch."""
