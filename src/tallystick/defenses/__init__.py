"""Defences of labels and features, one file each."""
