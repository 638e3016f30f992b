"""Streams as DUMP payloads of Redis, both ways."""
