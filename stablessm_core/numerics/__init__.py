"""Operations on tensors that layers, scans and kernels share."""
