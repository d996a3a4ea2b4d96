"""Hyena: a multiplicative mixer of order 2 around any linear time-invariant state-space layer."""
