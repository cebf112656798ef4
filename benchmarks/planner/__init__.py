"""The planner compared with fixed splits that know the trace in advance."""
