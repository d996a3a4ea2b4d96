"""MNIST digits, read pixel by pixel, from the original IDX files."""
