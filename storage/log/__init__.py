"""The log in front of the tree: a spike, measured before anything is built on it. The product does not import it."""
