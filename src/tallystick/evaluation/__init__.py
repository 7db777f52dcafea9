"""Metrics, intervals and calibration, and the protocols that evaluate a split network."""
