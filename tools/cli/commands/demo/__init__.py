"""The demonstration: real text, killed writers, a count."""
