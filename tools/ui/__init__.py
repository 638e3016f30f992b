"""Seeing a store: a terminal dashboard, a page, plots and Prometheus' text, all fed by Store.status()."""
