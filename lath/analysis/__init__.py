"""Benchmarks, plots, and step-by-step views of translations."""
