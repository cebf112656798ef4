"""Colocated serving, separate pools and the priced choice between them, on the same two engine processes."""
