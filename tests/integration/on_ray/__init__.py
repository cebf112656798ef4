"""Baton on Ray: Serve, nodes, scaling."""
