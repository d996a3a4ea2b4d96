"""Mamba's layer: the selective state-space model S6 in its block, with S7's transition as an option."""
