"""What `baton serve` answers over HTTP."""
