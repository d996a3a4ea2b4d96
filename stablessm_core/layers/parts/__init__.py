"""Parts that several layers share, and recurrences that are too long for their layer's file."""
