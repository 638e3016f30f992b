"""Locks between processes: on ranges of open files, with waiting in line, and who has the store open."""
