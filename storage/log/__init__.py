"""The log in front of the tree: commits are appended to it, reads see it before LMDB, checkpoints empty it."""
