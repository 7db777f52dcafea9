"""Measure how well a label party rebuilds a feature party's columns, by cut width and defence, and what hiding them costs."""
