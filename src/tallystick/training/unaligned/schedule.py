"""Schedule a method's batches: the same for every party, whether or not it knows the unaligned rows. Shapes: N positions."""

from dataclasses import replace

from torch import Tensor

from tallystick.config.unaligned import UnalignedKeys
from tallystick.training.plan import Phase, Schedule


def scheduled(schedule: Schedule, settings: UnalignedKeys, local_N: Tensor) -> Schedule:
    """Add what the contract's method needs to the batches of aligned rows.

    The number of local batches follows from the aligned rows and the contract alone, so a feature party, which has no
    ``local_N``, learns nothing from it.
    """
    joint = len(schedule.train_N)
    if settings.epochs_before:
        schedule = replace(schedule, before=(Phase(epochs=settings.epochs_before, joint_N=schedule.train_N),))
    if settings.facts.embeds:
        schedule = replace(schedule, embeds_before=settings.epochs_before)
    if settings.steps_beside:
        batches = settings.steps_beside * -(-joint // schedule.batch_size)
        schedule = replace(schedule, local_N=local_N, local_batches=batches)
    return schedule


def rows_ratio(schedule: Schedule) -> float:
    """Return the rows of a local batch for each row of a joint one."""
    if not schedule.local_batches:
        return 1.0
    return len(schedule.local_N) / schedule.local_batches / schedule.batch_size
