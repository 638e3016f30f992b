"""The format of what is stored in LMDB: keys, checksummed records, blocks of nodes."""
