"""What the router measures and reports, to Prometheus and to the autoscaler."""
