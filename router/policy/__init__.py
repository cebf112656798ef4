"""The choice of workers for a request: pure functions over a snapshot of the cluster."""
