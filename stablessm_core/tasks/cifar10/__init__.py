"""CIFAR-10 images, read pixel by pixel in grey or in colour, from the official binary files or a sample of them."""
