"""Commits: how what callers change comes to disk, shared or alone, and what an exception leaves of it."""
