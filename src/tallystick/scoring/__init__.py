"""Serving: a trained split network scores new ids with both sides online."""
