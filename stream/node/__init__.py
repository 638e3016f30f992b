"""Entries as bytes: IDs, listpacks and nodes."""
