"""check: every invariant of a store, walked."""
