"""Draws every chart and the pages that show them."""
