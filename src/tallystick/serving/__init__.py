"""Scores online: sessions that stand, and HTTP at the label party. What crosses between the sides is in ``serving``."""
