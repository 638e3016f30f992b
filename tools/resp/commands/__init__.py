"""The handlers of the commands; a module enters its own in the table (table.py) when it is imported."""
