"""How a commit wakes those that wait for it: the wake file, its watcher, and what ends a wait."""
