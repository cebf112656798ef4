"""Web console: the page, the state of the cluster that it shows, and controls of workers."""
