"""Snapshots: full, incremental and in shards; restored and verified."""
