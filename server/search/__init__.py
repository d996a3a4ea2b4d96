"""Finding runs: the filter language, the list, its columns, views and completion."""
