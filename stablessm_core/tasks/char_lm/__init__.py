"""Next character of a text file."""
