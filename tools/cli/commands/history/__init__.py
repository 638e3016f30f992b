"""Commands that scan and export."""
