"""Imports mutated archives of runs and reads everything that the server then shows of the imported runs."""
