"""List the feature inference attacks by name. Each attack has a file here and a row in this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tallystick.attacks.feature_inference.bootstrap import BootstrapInversion
from tallystick.attacks.feature_inference.contrast import ShuffledColumnsAttack
from tallystick.attacks.feature_inference.course import CourseAttack
from tallystick.attacks.feature_inference.denoised import DenoisedKernels
from tallystick.attacks.feature_inference.kernel import KernelRidge
from tallystick.attacks.feature_inference.known_initial_weights import KnownStartAttack
from tallystick.attacks.feature_inference.layer import START as LAYER_START
from tallystick.attacks.feature_inference.layer import LayerAttack
from tallystick.attacks.feature_inference.marginals import MarginalMatching
from tallystick.attacks.feature_inference.network import InversionNetwork
from tallystick.attacks.feature_inference.simulator import START, SimulatorDecoding
from tallystick.attacks.feature_inference.surrogate import SurrogateInversion
from tallystick.attacks.feature_inference.view import FeatureAttack
from tallystick.attacks.feature_inference.weighted_mean import WeightedMean

BENT = (0.3, 1.0, 3.0)
AVERAGED: tuple[FeatureAttack, ...] = (
    KernelRidge(reads="mean"),
    KernelRidge(reads="mean", bandwidths=BENT),
    CourseAttack(),
    SurrogateInversion(),
    BootstrapInversion(),
)
"""Attacks with different errors, whose guesses ``weighted-mean`` averages."""


@dataclass(frozen=True, kw_only=True)
class FeatureInferenceAttack:
    """One row of the table.

    Args:
        attack: rebuilds columns.
        description: one line on how it works.
        own_columns: reads the label party's own columns, so a feature party cannot measure it; a simulation can.
        from_shuffled: reads embeddings with columns shuffled (``FeatureView.contrast_NCD``), with and without known rows.
        quick: takes only a moment, so the quick audit runs it.
        behind_noise: finds more than the others only if embeddings have noise or levels; other runs omit it.
        from_start: knows no row, but the initial bottom model (``FeatureView.first``).
        from_marginals: knows no row, but the distribution of each column (``FeatureView.marginals``).
        from_others: knows no row, but rows of other people (``FeatureView.others``).
    """

    attack: FeatureAttack
    description: str
    own_columns: bool = False
    from_start: bool = False
    from_marginals: bool = False
    from_others: bool = False
    from_shuffled: bool = False
    quick: bool = False
    behind_noise: bool = False

    @property
    def several_looks(self) -> bool:
        """Tell whether it equals another attack where each row was embedded only once: there the last embedding and all
        embeddings side by side are the mean embedding.
        """
        return isinstance(self.attack, KernelRidge) and self.attack.reads in ("last", "looks")

    @property
    def parts(self) -> tuple[FeatureAttack, ...]:
        """Return the attacks whose guesses this attack reads."""
        if isinstance(self.attack, SimulatorDecoding):
            return (START,)
        if isinstance(self.attack, LayerAttack):
            return (LAYER_START,)
        return self.attack.parts if isinstance(self.attack, WeightedMean) else ()

    @property
    def knows_no_row(self) -> bool:
        """Tell whether it works without knowing the columns of any row that was sent."""
        return self.from_start or self.from_marginals or self.from_others


FEATURE_INFERENCE_ATTACKS: Mapping[str, FeatureInferenceAttack] = MappingProxyType(
    {
        "known-start": FeatureInferenceAttack(
            attack=KnownStartAttack(),
            description="solves the first batch with the bottom model from the contract's seed, and learns other rows from it",
            from_start=True,
        ),
        "marginals": FeatureInferenceAttack(
            attack=MarginalMatching(),
            description="finds the directions of mean embeddings whose distribution over rows is a column's",
            from_marginals=True,
        ),
        "marginals-course": FeatureInferenceAttack(
            attack=START,
            description="as marginals, with other people's table and the variation of embeddings of several epochs, aligned "
            "by time",
            from_others=True,
        ),
        "simulator": FeatureInferenceAttack(
            attack=SimulatorDecoding(),
            description="trains a simulated bottom model on other people's rows, none of which was sent, and inverts it",
            from_others=True,
        ),
        "shuffled-columns": FeatureInferenceAttack(
            attack=ShuffledColumnsAttack(),
            description="subtracts from each embedding its mean with one column shuffled: the rest depends on that column",
            from_shuffled=True,
            quick=True,
        ),
        "ridge": FeatureInferenceAttack(
            attack=KernelRidge(),
            description="a straight line from a row's last embedding to each column",
            quick=True,
        ),
        "ridge-mean": FeatureInferenceAttack(
            attack=KernelRidge(reads="mean"),
            description="as ridge, from the row's mean embedding, which averages fresh noise out",
            quick=True,
        ),
        "kernel": FeatureInferenceAttack(
            attack=KernelRidge(bandwidths=BENT),
            description="a smooth curve from a row's last embedding to each column",
            quick=True,
        ),
        "kernel-mean": FeatureInferenceAttack(
            attack=KernelRidge(reads="mean", bandwidths=BENT),
            description="as kernel, from the row's mean embedding",
            quick=True,
        ),
        "ridge-looks": FeatureInferenceAttack(
            attack=KernelRidge(reads="looks"), description="as ridge, from the row's embeddings of several epochs side by side"
        ),
        "kernel-looks": FeatureInferenceAttack(
            attack=KernelRidge(reads="looks", bandwidths=BENT),
            description="as kernel, from the row's embeddings of several epochs side by side",
        ),
        "course": FeatureInferenceAttack(
            attack=CourseAttack(),
            description="smooth curves from the variation of the row's embeddings over several epochs, aligned by time",
            quick=True,
        ),
        "layer": FeatureInferenceAttack(
            attack=LayerAttack(),
            description="as course, corrected until one layer explains the embeddings",
        ),
        "network": FeatureInferenceAttack(
            attack=InversionNetwork(),
            description="a small network from all of a row's embeddings and their mean to all columns",
            behind_noise=True,
        ),
        "surrogate": FeatureInferenceAttack(
            attack=SurrogateInversion(),
            description="inverts a learnt stand-in for the bottom model, from the row's mean embedding",
        ),
        "bootstrap": FeatureInferenceAttack(
            attack=BootstrapInversion(),
            description="learns how known rows are embedded, embeds made-up rows in the same way, and learns to invert these",
            behind_noise=True,
        ),
        "denoised": FeatureInferenceAttack(
            attack=DenoisedKernels(),
            description="smooth curves from directions of the mean embedding that vary more than noise",
            quick=True,
            behind_noise=True,
        ),
        "weighted-mean": FeatureInferenceAttack(
            attack=WeightedMean(parts=AVERAGED),
            description="averages other attacks' guesses, weighted by how well each guesses known rows that were withheld "
            "from it",
            behind_noise=True,
        ),
        "ridge-own-columns": FeatureInferenceAttack(
            attack=KernelRidge(reads="looks", own_columns=True),
            description="as ridge-looks, and from the label party's own columns",
            own_columns=True,
        ),
        "kernel-own-columns": FeatureInferenceAttack(
            attack=KernelRidge(reads="looks", bandwidths=BENT, own_columns=True),
            description="as kernel-looks, and from the label party's own columns",
            own_columns=True,
        ),
        "kernel-mean-own-columns": FeatureInferenceAttack(
            attack=KernelRidge(reads="mean", bandwidths=BENT, own_columns=True),
            description="as kernel-mean, and from the label party's own columns",
            own_columns=True,
        ),
        "network-own-columns": FeatureInferenceAttack(
            attack=InversionNetwork(own_columns=True),
            description="as network, and from the label party's own columns",
            own_columns=True,
        ),
        "surrogate-own-columns": FeatureInferenceAttack(
            attack=SurrogateInversion(own_columns=True),
            description="as surrogate, with the label party's own columns as a first guess",
            own_columns=True,
        ),
    }
)
