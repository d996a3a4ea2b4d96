"""The C kernels for CPUs: the sources, the build, and the calls from Python.

The package build compiles one library per instruction set. The kernels run on PyTorch's own threads. `scan`, `network` and
`watch` call the kernels through `library`.
"""
