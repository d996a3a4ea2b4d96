"""Multi-query associative recall (MQAR): key-value pairs, then the value of each key wherever it comes again."""
