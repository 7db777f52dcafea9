"""DPAUC's tables."""
