"""S5: one complex diagonal state-space model of many inputs and outputs, whose published map is none."""
