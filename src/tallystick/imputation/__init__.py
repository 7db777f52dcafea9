"""Imputed labels and features for rows of a union that a side lacks (FLORIST, sections 2.4 and 3): a file each, a registry."""
