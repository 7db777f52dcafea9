"""Renders results into one self-contained page; computes nothing."""
