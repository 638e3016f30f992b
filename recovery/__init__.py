"""recovery: what makes a store trustworthy: checks, repair, snapshots, and crash tests."""
