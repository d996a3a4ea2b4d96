"""Draws: every chart, and the pages around them."""
