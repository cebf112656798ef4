"""Options and config files of every process: definitions, parsing and validation."""
