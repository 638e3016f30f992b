"""Bytes on disk: environment, key layout, checksummed records and blocks, rax, group commit."""
