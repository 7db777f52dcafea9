"""Demonstrations on one machine: every party a process of its own."""
