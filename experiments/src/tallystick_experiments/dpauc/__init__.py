"""Make DPAUC's tables."""
