"""The store's directory, its files, and the locks on them."""
