"""Define bench faults: mutated messages, damaged files, kills and a bad network against a job."""

from tallystick_experiments.command import Command

faults = Command(
    "tallystick_robustness.page:faults",
    "Mutated messages, damaged files, random kills and network faults: exit code 3 if any was not withstood or refused.",
)
