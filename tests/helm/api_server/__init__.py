"""A Kubernetes API server that keeps its objects in memory, for Helm, the `kubernetes` client and Ray's autoscaler."""
