"""Audit what a run gave away: run the attacks on views that a party recorded, and compare what they find with its own data."""
