"""Jobs: workers that run a function for each entry of a group."""
