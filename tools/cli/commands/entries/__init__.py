"""Commands on streams and their entries."""
