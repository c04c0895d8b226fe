"""Stage 7: the weekly report and baselines."""
