"""Attacks that read a recorded view and nothing else."""
