"""What is learned, and from which data: one folder per task, `section.py` without torch and `data.py` with it."""
