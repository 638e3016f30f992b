"""salvage: what is whole in a damaged store, brought into a new one."""
