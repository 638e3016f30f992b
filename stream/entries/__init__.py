"""A stream's entries: appended, read, counted, deleted, trimmed."""
