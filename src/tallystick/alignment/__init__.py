"""Align tables privately, to learn who is in both: one function per role over a channel."""
