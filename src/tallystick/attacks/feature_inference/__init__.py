"""Attacks on the label party's view: which of a feature party's columns can be rebuilt from its cut embeddings?"""
