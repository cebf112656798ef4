"""Metrics of the router, for Prometheus and the autoscaler."""
