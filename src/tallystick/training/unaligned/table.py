"""Methods for unaligned rows by the contract's names: a row each, and nobody else compares the names."""

from collections.abc import Mapping, Sequence

from tallystick.config.unaligned import UnalignedConfig
from tallystick.privacy.randomness import Seed
from tallystick.training.unaligned.average import Average
from tallystick.training.unaligned.diffu_at import DiffuAT
from tallystick.training.unaligned.fedcvt import FedCVT
from tallystick.training.unaligned.fedhssl import FedHSSL
from tallystick.training.unaligned.heuristic import Heuristic
from tallystick.training.unaligned.jpl import JointPrivilegedLearning
from tallystick.training.unaligned.method import UnalignedMethod
from tallystick.training.unaligned.multi_task import MultiTask
from tallystick.training.unaligned.regressor import Regressor
from tallystick.training.unaligned.ss_vfl import SelfSupervised
from tallystick.training.unaligned.vfl_mpd import MatchedPairs
from tallystick.training.unaligned.warm_start import Offset, WarmStart

METHODS: Mapping[str, type[UnalignedMethod]] = {
    method.name: method
    for method in (
        WarmStart,
        Offset,
        MultiTask,
        Average,
        Heuristic,
        Regressor,
        DiffuAT,
        JointPrivilegedLearning,
        FedCVT,
        SelfSupervised,
        FedHSSL,
        MatchedPairs,
    )
}
"""Every method but none; config/unaligned.py says of each what a contract's checks ask."""


def method_of(
    settings: UnalignedConfig, *, batch_size: int, ratio: float = 1.0, seed: Seed = 0, columns: Sequence[str] = ()
) -> UnalignedMethod:
    """The method of a contract that uses unaligned rows."""
    return METHODS[settings.method](settings=settings, batch_size=batch_size, ratio=ratio, seed=seed, columns=columns)
