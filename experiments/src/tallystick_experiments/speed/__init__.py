"""Measure speed, and show that it does not change a single bit."""
