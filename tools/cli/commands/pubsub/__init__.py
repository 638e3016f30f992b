"""Commands that publish, subscribe and bind."""
