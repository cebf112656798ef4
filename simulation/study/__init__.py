"""Studies of a deployment under a trace: runs, comparisons, reports."""
