"""Provide the benchmarks: one module per paper or figure, each a command of tallystick bench."""
