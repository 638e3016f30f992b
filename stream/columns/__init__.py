"""From listpacks to columns."""
