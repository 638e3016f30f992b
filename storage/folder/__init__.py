"""The folder of a store: its files, its generations, and whether they are still in place."""
