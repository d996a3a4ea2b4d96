"""Compares our layers with public layers that have the same weights: outputs in tests/references, and speed in `__main__`.

This project's environment does not contain the public libraries. So each library is imported only when a pair with one of its
layers is built.
"""
