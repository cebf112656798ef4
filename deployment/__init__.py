"""How clusters run: on one machine, on Ray, on Kubernetes; and how many workers they have."""
