"""Run demonstrations on one machine, with a separate process for every party."""
