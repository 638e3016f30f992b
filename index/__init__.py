"""index: subjects and channels, who is interested in them, and how a message reaches them."""
