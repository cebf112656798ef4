"""The chart in an API server, and in a cluster of kind."""
