"""Measures how much load the service handles on this machine, and compares the results with the promised figures."""
