"""Benchmarks against real peers, in one run side by side: ``python -m raxlog.tools.bench``."""
