"""Examines a machine and the links between workers: measures instead of trusting, and says what to do."""
