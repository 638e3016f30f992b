"""The format of what lies in LMDB: keys, checksummed records, blocks of nodes."""
