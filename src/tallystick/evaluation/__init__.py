"""Compute metrics, intervals and calibration, and evaluate a split network."""
