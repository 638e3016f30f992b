"""Jobs: workers that run a function for each entry of a group, and entries that are to come later."""
