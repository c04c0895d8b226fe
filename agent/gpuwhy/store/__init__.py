"""Stage 6: local history."""
