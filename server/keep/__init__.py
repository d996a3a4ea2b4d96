"""How long runs are kept, and how they are deleted and moved: trash, retention, folders, archives, imports."""
