"""List the defences by name. A defence is a file here and a row in this table, or a class of an installed package.

A row's class says where the defence applies, which targets it allows and which keys it has in a contract. config/defense.py makes
the contract's entries from that, trials/ tries the defences, and docs/explanation/defenses.md is checked against it.
"""

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType

from tallystick.defenses.defense import Defense
from tallystick.defenses.distance_correlation import DistanceCorrelation
from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.defenses.gaussian_labels import GaussianLabels
from tallystick.defenses.isotropic import Isotropic
from tallystick.defenses.label_dp import LabelDP, LabelDPPrior
from tallystick.defenses.marvell import Marvell
from tallystick.defenses.mixpro import MixPro
from tallystick.defenses.quantized_embeddings import QuantizedEmbeddings
from tallystick.errors import ConfigError

GROUP = "tallystick.defenses"
"""The group of installed packages' entry points: a defence's method, and its class."""

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
            DistanceCorrelation,
            GaussianEmbeddings,
            QuantizedEmbeddings,
        )
    }
)


def installed_methods() -> list[str]:
    """List the methods of installed packages' defences, without loading any of them."""
    return sorted(entry_points(group=GROUP).names)


def defense_named(method: str) -> type[Defense] | None:
    """Return the defence of this method, or None if there is none.

    It is in the table, or is loaded from an installed package's entry point. Unlike an attack from outside, such a defence runs
    in the process of the party whose contract names it, so it is trusted like the library. Raises ConfigError for an entry point
    that cannot be loaded, that belongs to two packages, or that is not a defence.
    """
    if method in DEFENSES:
        return DEFENSES[method]
    points = list(entry_points(group=GROUP, name=method))
    if not points:
        return None
    where = f"entry point {method} of the group {GROUP}"
    if len(points) > 1:
        values = ", ".join(point.value for point in points)
        raise ConfigError(f"{where}: {len(points)} packages have one ({values}); uninstall all except one")
    try:
        defense = points[0].load()
    except Exception as error:
        raise ConfigError(f"{where}: {points[0].value} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(defense, type) and issubclass(defense, Defense)) or defense.method != method:
        raise ConfigError(f"{where}: {points[0].value} is not a class of a Defense whose method is {method}")
    return defense
