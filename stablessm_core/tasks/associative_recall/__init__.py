"""Associative recall: key-value pairs, then the value of one key."""
