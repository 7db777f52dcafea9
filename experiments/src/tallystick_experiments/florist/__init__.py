"""Make FLORIST's tables and curves."""
