"""The defences by name: a defence is a file here and a row in this table.

A row's class says where it applies, which targets it allows and which keys it has in a contract; config/defense.py makes the
contract's entries of that, trials/ tries them, and docs/explanation/defenses.md is checked against it.
"""

from collections.abc import Mapping
from types import MappingProxyType

from tallystick.defenses.defense import Defense
from tallystick.defenses.distance_correlation import DistanceCorrelation
from tallystick.defenses.feature_distance_correlation import FeatureDistanceCorrelation
from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.gaussian_labels import GaussianLabels
from tallystick.defenses.gradient_compression import GradientCompression
from tallystick.defenses.isotropic import Isotropic
from tallystick.defenses.label_dp import LabelDP, LabelDPPrior
from tallystick.defenses.ladsg import Ladsg
from tallystick.defenses.marvell import Marvell
from tallystick.defenses.mixpro import MixPro
from tallystick.defenses.quantized_embeddings import QuantizedEmbeddings
from tallystick.defenses.reconstruction_penalty import ReconstructionPenalty

DEFENSES: Mapping[str, type[Defense]] = MappingProxyType(
    {
        defense.method: defense
        for defense in (
            Marvell,
            Isotropic,
            MixPro,
            LabelDP,
            LabelDPPrior,
            GaussianLabels,
            GaussianGradients,
            GradientCompression,
            Ladsg,
            DistanceCorrelation,
            GaussianEmbeddings,
            QuantizedEmbeddings,
            FeatureDistanceCorrelation,
            ReconstructionPenalty,
        )
    }
)
