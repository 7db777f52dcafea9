"""Locate the other side's keys in a linkage by similar keys."""
