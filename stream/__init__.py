"""Meaning: stream IDs, listpacks, nodes, and the stream itself."""
