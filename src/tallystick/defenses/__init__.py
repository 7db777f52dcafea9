"""Provide defences of labels and features, one file each."""
