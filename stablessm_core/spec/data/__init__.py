"""Readers of data files. The server and the workers also check data with these readers. The readers do not import torch."""
