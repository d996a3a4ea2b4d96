"""S4: diagonal plus low rank, started as HiPPO-LegS, discretised by the bilinear rule."""
