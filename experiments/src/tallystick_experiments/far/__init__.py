"""Measure training by partners that are far apart: ``tallystick bench far``."""
