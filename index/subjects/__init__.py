"""Subjects: the index of subscriptions, and how a subject is matched."""
