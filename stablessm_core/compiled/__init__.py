"""Kernels in C for CPUs: built with the package, one library per instruction set, and run on PyTorch's own threads."""
