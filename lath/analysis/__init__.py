"""What was measured: speed, plots, and how a translation came about."""
