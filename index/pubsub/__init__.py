"""Publish and subscribe: how a message reaches streams and subscribers."""
