"""Which processes form a cluster: the registry of workers and the rendezvous of expert groups."""
