"""Autoscaling budget from a Kubernetes cluster's free capacity; see docs/kubernetes_budget.md."""
