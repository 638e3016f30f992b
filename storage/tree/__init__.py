"""LMDB: its file, its pages, its locks and its errors. What is above asks this room, and not LMDB."""
