"""The formats in which models write calls."""
