"""Find the class of a method for unaligned rows by the contract's name. config/unaligned.py says where each is."""

from collections.abc import Sequence
from importlib import import_module

from tallystick.config.unaligned import METHODS, UnalignedKeys
from tallystick.privacy.randomness import Seed
from tallystick.training.unaligned.method import UnalignedMethod


def class_of(name: str) -> type[UnalignedMethod]:
    """Load the class of a method that uses unaligned rows."""
    module, _, class_name = METHODS[name].implemented.partition(".")
    method: type[UnalignedMethod] = getattr(import_module(f"{__package__}.{module}"), class_name)
    return method


def method_of(
    settings: UnalignedKeys, *, batch_size: int, ratio: float = 1.0, seed: Seed = 0, columns: Sequence[str] = ()
) -> UnalignedMethod:
    """Build the method of a contract that uses unaligned rows."""
    return class_of(settings.method)(settings=settings, batch_size=batch_size, ratio=ratio, seed=seed, columns=columns)
