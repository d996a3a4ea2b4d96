"""S4D: independent diagonal state-space models, one per channel, computed as a convolution."""
