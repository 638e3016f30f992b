"""index: subjects and channels, their subscribers, and how a message reaches them."""
