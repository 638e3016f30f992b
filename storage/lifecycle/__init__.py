"""What outlives one opening: the registry of open stores, and compaction."""
