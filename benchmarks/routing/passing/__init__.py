"""Pass-through processes in place of a router, as baselines."""
