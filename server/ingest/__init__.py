"""What is stored of a run, whoever recorded it: the schemas of the messages, the check of their blocks, and the post."""
