"""bench faults: what mutated messages, damaged files, kills and a bad network do to a job."""

from tallystick_experiments.command import Command

faults = Command(
    "tallystick_robustness.page:faults",
    "Mutated messages, damaged files, random kills and network faults: exit code 3 if any was not withstood or refused.",
)
