"""List the membership attacks by the view that they read. Each attack has a file here and a row in this table."""

from collections.abc import Mapping
from types import MappingProxyType

from tallystick.attacks.membership.agreement import InferredLabelAgreement, LabelAgreement, OwnColumnAgreement
from tallystick.attacks.membership.cells import UniqueCells
from tallystick.attacks.membership.consistency import Consistency
from tallystick.attacks.membership.direction import DirectionFlips, GradientDirection
from tallystick.attacks.membership.discriminator import LearnedDiscriminator
from tallystick.attacks.membership.identical import IdenticalEmbeddings
from tallystick.attacks.membership.spectral import SpectralMembership
from tallystick.attacks.membership.twins import TwinEmbeddings
from tallystick.attacks.view import Attack, Received

MEMBERSHIP_ATTACKS: Mapping[Received, Mapping[str, Attack]] = MappingProxyType(
    {
        "cut_gradient": {
            "spectral": SpectralMembership(),
            "direction": GradientDirection(),
            "flips": DirectionFlips(),
            "consistency": Consistency(),
            "agreement": InferredLabelAgreement(),
            "learned": LearnedDiscriminator(),
        },
        "cut_embedding": {
            "spectral": SpectralMembership(),
            "spectral-signed": SpectralMembership(signed=True),
            "identical": IdenticalEmbeddings(),
            "twins": TwinEmbeddings(),
            "consistency": Consistency(),
            "unique-cells": UniqueCells(),
            "unique-pairs": UniqueCells(together=2),
            "agreement": LabelAgreement(),
            "agreement-own": OwnColumnAgreement(),
            "learned": LearnedDiscriminator(),
        },
    }
)
