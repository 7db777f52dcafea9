"""FLORIST's tables and curves."""
