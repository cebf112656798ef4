"""A cluster on one machine: its configuration, processes and supervisors."""
