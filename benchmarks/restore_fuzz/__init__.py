"""Restores damaged and malicious backup files and checks what is left afterwards."""
