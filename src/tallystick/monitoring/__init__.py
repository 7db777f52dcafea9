"""Monitoring: what a party sees alone of a model in use, beside what training saw. Nothing crosses."""
