"""Modular counting: how many ones there were so far, modulo a number; parity is the number 2."""
