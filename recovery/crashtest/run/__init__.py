"""The modes of a crash test, and the report of what came of them."""
