"""`baton doctor`: checks and measurements of machines and of the links between workers, with remedies."""
