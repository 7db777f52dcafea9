"""Impute labels and features of rows of a union that a side lacks (FLORIST, sections 2.4 and 3): one file each, and a table."""
