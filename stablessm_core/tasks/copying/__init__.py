"""Copying: remember tokens over a blank stretch, then repeat them; the selective form hides them among blanks."""
