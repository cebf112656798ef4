"""Admission: limits, queueing, deadlines and budgets of requests."""
