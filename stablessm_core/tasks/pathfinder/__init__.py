"""Pathfinder of Long Range Arena: do the two marks lie on the same dashed path? From an own generator of 32 x 32 images."""
