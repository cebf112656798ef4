"""What pods and their networks may do."""
