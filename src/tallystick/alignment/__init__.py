"""Align tables privately, to learn which rows both sides have: one function per role over a channel."""
