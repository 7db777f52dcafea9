"""Rebuild a feature party's columns from cut embeddings, which are in the label party's view."""
