"""Colocated serving, separate pools and the priced choice between them, on two engine processes each."""
