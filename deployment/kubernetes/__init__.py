"""What a Kubernetes cluster can still schedule, as the autoscaler's budget. docs/kubernetes_budget.md explains it."""
