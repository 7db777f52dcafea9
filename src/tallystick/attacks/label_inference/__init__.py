"""Infer the label party's labels from a feature party's view, and measure how well that works."""
