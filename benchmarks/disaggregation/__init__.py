"""Colocated serving, separate pools, and the cost model's choice between them, on two engine processes each."""
