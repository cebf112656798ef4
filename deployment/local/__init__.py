"""A cluster on one machine: processes, supervisors, configuration."""
