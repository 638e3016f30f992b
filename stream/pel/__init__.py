"""The pending entries list: which entries a group has delivered, to which consumer, when, and how often."""
