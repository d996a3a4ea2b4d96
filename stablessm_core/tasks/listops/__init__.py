"""ListOps of Long Range Arena: the value of a nested expression of MIN, MAX, MED and SM over digits, from an own generator."""
