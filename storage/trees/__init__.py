"""Ordered keys as trees: the radix tree, and the counts that ordinals need."""
