"""A deployment in virtual time under a trace."""
