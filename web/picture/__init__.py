"""Draws a figure with data as PDF, SVG or PNG. Only `render` and the modules below it import matplotlib, which takes half a
second; the server imports `render` when somebody asks for the first picture."""
