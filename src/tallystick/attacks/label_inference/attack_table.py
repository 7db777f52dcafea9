"""List the label inference attacks by name. Each attack has a file here and a row in this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tallystick.attacks.label_inference.auxiliary import (
    AuxiliaryLabels,
    ClassOrder,
    FewKnownNumbers,
    FewLabels,
    LabelsPerBatch,
    NoLabels,
    ShareOfLabels,
)
from tallystick.attacks.label_inference.averaged import OverEpochs
from tallystick.attacks.label_inference.bilinear import BilinearProbe
from tallystick.attacks.label_inference.clusters import ClusterAttack
from tallystick.attacks.label_inference.combined import CombinedAttack
from tallystick.attacks.label_inference.completion import ModelCompletion
from tallystick.attacks.label_inference.direction import DirectionAttack
from tallystick.attacks.label_inference.energy import EnergyAttack
from tallystick.attacks.label_inference.enumeration import LabelEnumeration
from tallystick.attacks.label_inference.few_numbers import FewNumbers
from tallystick.attacks.label_inference.fine_tuned import FineTunedCompletion
from tallystick.attacks.label_inference.first_steps import FirstSteps
from tallystick.attacks.label_inference.norm import NormAttack
from tallystick.attacks.label_inference.paired import PairedEnergy
from tallystick.attacks.label_inference.probe import Probe
from tallystick.attacks.label_inference.spectral import SpectralAttack
from tallystick.attacks.label_inference.surrogate_top import SurrogateTop
from tallystick.attacks.label_inference.unflipped import UnflippedAttack
from tallystick.attacks.label_inference.unmixed import UnmixedAttack
from tallystick.attacks.view import Attack, Received

NO_LABELS = NoLabels()


@dataclass(frozen=True, kw_only=True)
class LabelInferenceAttack:
    """One row of the table: an attack, and what it is given.

    Args:
        attack: scores rows of a view.
        description: one line on how it works, for readers who do not know it; reports show it with the name.
        reads: which messages of a step it reads; gradients if it reads both gradients and embeddings.
        knows: which labels the attacker knows.
        binary: whether it works on two classes.
        multiclass: whether it works on more than two classes.
        numbers: whether it works on targets that are numbers.
        over_training: whether it reads one vector per row, and so can use sums of the whole training (``RowSums``).
        with_embeddings: whether it needs the attacker's own embeddings in addition to the gradients.
        tells_of_both: whether its findings may come from these embeddings alone.
        with_model: whether it trains the attacker's own bottom model on its own columns (``View.own_model``).
        from_start: whether it simulates the label party's initial model (``View.start``).
        from_flip: whether it undoes randomised response of a known probability (``View.flip``).
        of_several: whether it separates several labels of a row (``View.labels``).
        quick: whether the quick audit runs it: it reads one vector per row and takes only a moment.
        from_moments: whether it reads second moments of gradients.
        upper_bound: whether it needs labels that no attacker has. It shows how much there is to find at least; another classifier
            may find more.
    """

    attack: Attack
    description: str
    reads: Received
    knows: AuxiliaryLabels = NO_LABELS
    binary: bool = True
    multiclass: bool = True
    numbers: bool = False
    over_training: bool = False
    with_embeddings: bool = False
    tells_of_both: bool = False
    with_model: bool = False
    from_start: bool = False
    from_flip: bool = False
    of_several: bool = False
    upper_bound: bool = False
    quick: bool = False
    from_moments: bool = False

    def allows(self, classes: int) -> bool:
        """Tell whether it can be used on a target of this many classes; 0 means a number."""
        if classes == 0:
            return self.numbers
        return self.multiclass if classes > 2 else self.binary


DIRECTION = "rows whose gradients point in the direction of a known row's gradient have its label"
SPECTRAL = "rows are separated by the side of the batch's main direction on which they lie"
CLUSTERS = "rows are sorted into as many clusters as there are classes; the smaller cluster is the rarer class"
BY_SIZE = "rows are sorted into as many clusters as there are classes; the largest cluster is the most frequent class, and so on"
FEW_NUMBERS = "curves fitted to a few rows of known number"
FIRST_STEPS = "an untrained model's error is the target: rows of the first three batches are ranked by their gradients"
AVERAGED = "each row's scores averaged over the epochs, so that fresh noise cancels out"

OF_GRADIENTS: tuple[Attack, ...] = (
    OverEpochs(attack=NormAttack()),
    SpectralAttack(target="cut_gradient", scope="run"),
    ClusterAttack(target="cut_gradient"),
    EnergyAttack(),
    EnergyAttack(half="high"),
)
"""Parts of a combined attack: every attack on gradients that knows no label and scores each row once."""

_ATTACKS: Mapping[str, LabelInferenceAttack] = MappingProxyType(
    {
        "norm": LabelInferenceAttack(
            attack=NormAttack(),
            description="a row with a longer gradient is more likely of the rarer class",
            reads="cut_gradient",
            multiclass=False,
        ),
        "direction-1": LabelInferenceAttack(
            attack=DirectionAttack(), description=DIRECTION, reads="cut_gradient", knows=LabelsPerBatch(count=1)
        ),
        "direction-3": LabelInferenceAttack(
            attack=DirectionAttack(), description=DIRECTION, reads="cut_gradient", knows=LabelsPerBatch(count=3)
        ),
        "direction-5": LabelInferenceAttack(
            attack=DirectionAttack(), description=DIRECTION, reads="cut_gradient", knows=LabelsPerBatch(count=5)
        ),
        "spectral-gradient": LabelInferenceAttack(
            attack=SpectralAttack(target="cut_gradient"), description=SPECTRAL, reads="cut_gradient", multiclass=False
        ),
        "spectral-embedding": LabelInferenceAttack(
            attack=SpectralAttack(target="cut_embedding"), description=SPECTRAL, reads="cut_embedding", multiclass=False
        ),
        "clusters-gradient": LabelInferenceAttack(
            attack=ClusterAttack(target="cut_gradient", scope="batch"), description=CLUSTERS, reads="cut_gradient"
        ),
        "clusters-embedding": LabelInferenceAttack(
            attack=ClusterAttack(target="cut_embedding"),
            description=CLUSTERS,
            reads="cut_embedding",
            over_training=True,
            quick=True,
        ),
        "clusters-size-gradient": LabelInferenceAttack(
            attack=ClusterAttack(target="cut_gradient", names="size"),
            description=BY_SIZE,
            reads="cut_gradient",
            knows=ClassOrder(),
            binary=False,
            over_training=True,
            quick=True,
        ),
        "clusters-size-embedding": LabelInferenceAttack(
            attack=ClusterAttack(target="cut_embedding", names="size"),
            description=BY_SIZE,
            reads="cut_embedding",
            knows=ClassOrder(),
            binary=False,
            over_training=True,
            quick=True,
        ),
        "spectral-averaged": LabelInferenceAttack(
            attack=SpectralAttack(target="cut_gradient", scope="run"),
            description="rows are separated by the side of the main direction on which their mean gradients lie",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            quick=True,
        ),
        "clusters-averaged": LabelInferenceAttack(
            attack=ClusterAttack(target="cut_gradient"),
            description=f"each row's gradients averaged over the epochs; {CLUSTERS}",
            reads="cut_gradient",
            over_training=True,
            quick=True,
        ),
        "norm-averaged": LabelInferenceAttack(
            attack=OverEpochs(attack=NormAttack()),
            description=f"as norm, {AVERAGED}",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            quick=True,
        ),
        "low-energy": LabelInferenceAttack(
            attack=EnergyAttack(),
            description="rows whose gradients are smallest in the directions of least variance are of one class",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            quick=True,
            from_moments=True,
        ),
        "high-energy": LabelInferenceAttack(
            attack=EnergyAttack(half="high"),
            description="as low-energy, in the directions of most variance",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            quick=True,
            from_moments=True,
        ),
        "paired-energy": LabelInferenceAttack(
            attack=PairedEnergy(),
            description="the part of a row's gradients that repeats in every epoch, over all directions: rows with more of it "
            "are of the rarer class",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            quick=True,
            from_moments=True,
        ),
        "unmixed": LabelInferenceAttack(
            attack=UnmixedAttack(),
            description="rotates mean gradients' main directions until they vary independently: one for each label of a row",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            of_several=True,
            quick=True,
        ),
        "direction-averaged": LabelInferenceAttack(
            attack=DirectionAttack(scope="run"),
            description=f"each row's gradients averaged over the epochs; {DIRECTION}",
            reads="cut_gradient",
            knows=FewLabels(),
            over_training=True,
            quick=True,
        ),
        "enumeration": LabelInferenceAttack(
            attack=LabelEnumeration(),
            description="the gradient of each label is simulated from the contract's seed, and the most similar one gives the "
            "row's label",
            reads="cut_gradient",
            with_embeddings=True,
            from_start=True,
        ),
        "enumeration-clusters": LabelInferenceAttack(
            attack=LabelEnumeration(clusters=True),
            description="embeddings are sorted into clusters, and named by the most similar gradient simulated from the seed",
            reads="cut_gradient",
            with_embeddings=True,
            tells_of_both=True,
            from_start=True,
        ),
        "surrogate-top": LabelInferenceAttack(
            attack=SurrogateTop(),
            description="a top model and the rows' labels are fitted together to the received gradients",
            reads="cut_gradient",
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
        "surrogate-top-prediction": LabelInferenceAttack(
            attack=SurrogateTop(guess="prediction"),
            description="as surrogate-top, but the label is what that model then predicts from the row's embedding",
            reads="cut_gradient",
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
        "surrogate-top-few": LabelInferenceAttack(
            attack=SurrogateTop(guess="prediction"),
            description="as surrogate-top-prediction, beginning from a few known rows, whose labels are fixed",
            reads="cut_gradient",
            knows=FewLabels(),
            binary=False,
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
        "combined-gradient": LabelInferenceAttack(
            attack=CombinedAttack(parts=OF_GRADIENTS),
            description="adds the ranks of label-free attacks on mean gradients; the clearest rows train a model for the others",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            quick=True,
            from_moments=True,
        ),
        "combined": LabelInferenceAttack(
            attack=CombinedAttack(parts=(*OF_GRADIENTS, SurrogateTop()), embeddings=True),
            description="as combined-gradient, with surrogate-top and with embeddings",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
        "unflipped": LabelInferenceAttack(
            attack=UnflippedAttack(),
            description="reads replaced labels from the gradients, fits a model to them, corrects it for the flips, and adds "
            "the row's own label",
            reads="cut_gradient",
            multiclass=False,
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
            from_flip=True,
            quick=True,
        ),
        "completion": LabelInferenceAttack(
            attack=ModelCompletion(),
            description="a small model on the embeddings, trained on a few known rows, labels all the others",
            reads="cut_embedding",
            knows=FewLabels(),
            over_training=True,
            quick=True,
        ),
        "completion-standardised": LabelInferenceAttack(
            attack=ModelCompletion(columns="each"),
            description="as completion, after scaling all embedding columns to the same spread",
            reads="cut_embedding",
            knows=FewLabels(),
            over_training=True,
            quick=True,
        ),
        "completion-components": LabelInferenceAttack(
            attack=ModelCompletion(columns="components"),
            description="as completion, on the few directions in which the embeddings spread most",
            reads="cut_embedding",
            knows=FewLabels(),
            over_training=True,
        ),
        "completion-gradient": LabelInferenceAttack(
            attack=ModelCompletion(target="cut_gradient"),
            description="a small model on the gradients, trained on a few known rows, labels all the others",
            reads="cut_gradient",
            knows=FewLabels(),
            over_training=True,
            quick=True,
        ),
        "completion-both": LabelInferenceAttack(
            attack=ModelCompletion(target="both"),
            description="a small model on gradients and embeddings together, trained on a few known rows, labels all the others",
            reads="cut_gradient",
            knows=FewLabels(),
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
            quick=True,
        ),
        "completion-fine-tuned": LabelInferenceAttack(
            attack=FineTunedCompletion(),
            description="the attacker's own bottom model is trained further, with a few known rows and all the others",
            reads="cut_embedding",
            knows=FewLabels(),
            with_model=True,
        ),
        "probe": LabelInferenceAttack(
            attack=Probe(),
            description="a linear model on the embeddings, trained on half of all labels",
            reads="cut_embedding",
            knows=ShareOfLabels(),
            upper_bound=True,
            over_training=True,
        ),
        "probe-network": LabelInferenceAttack(
            attack=Probe(hidden=64),
            description="a small network on the embeddings, trained on half of all labels",
            reads="cut_embedding",
            knows=ShareOfLabels(),
            upper_bound=True,
            over_training=True,
        ),
        "probe-gradient": LabelInferenceAttack(
            attack=Probe(target="cut_gradient"),
            description="a linear model on the gradients, trained on half of all labels",
            reads="cut_gradient",
            knows=ShareOfLabels(),
            upper_bound=True,
            over_training=True,
        ),
        "probe-bilinear": LabelInferenceAttack(
            attack=BilinearProbe(),
            description="a linear model on gradients, embeddings and their products, trained on half of all labels",
            reads="cut_gradient",
            knows=ShareOfLabels(),
            upper_bound=True,
            over_training=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
        "first-steps": LabelInferenceAttack(
            attack=FirstSteps(),
            description=FIRST_STEPS,
            reads="cut_gradient",
            binary=False,
            multiclass=False,
            numbers=True,
        ),
        "first-steps-embedding": LabelInferenceAttack(
            attack=FirstSteps(of="embedding"),
            description="as first-steps, and all other rows by a curve from their embeddings",
            reads="cut_gradient",
            binary=False,
            multiclass=False,
            numbers=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
        "first-steps-gradient": LabelInferenceAttack(
            attack=FirstSteps(of="gradient"),
            description="as first-steps, and all other rows by a curve from the gradients of later epochs",
            reads="cut_gradient",
            binary=False,
            multiclass=False,
            numbers=True,
        ),
        "few-numbers-embedding": LabelInferenceAttack(
            attack=FewNumbers(reads="embedding"),
            description=f"{FEW_NUMBERS}, from embeddings",
            reads="cut_embedding",
            knows=FewKnownNumbers(),
            binary=False,
            multiclass=False,
            numbers=True,
        ),
        "few-numbers-gradient": LabelInferenceAttack(
            attack=FewNumbers(reads="gradient"),
            description=f"{FEW_NUMBERS}, from the gradients of later epochs",
            reads="cut_gradient",
            knows=FewKnownNumbers(),
            binary=False,
            multiclass=False,
            numbers=True,
        ),
        "few-numbers-both": LabelInferenceAttack(
            attack=FewNumbers(reads="both"),
            description=f"{FEW_NUMBERS}, from these gradients and embeddings together",
            reads="cut_gradient",
            knows=FewKnownNumbers(),
            binary=False,
            multiclass=False,
            numbers=True,
            with_embeddings=True,
            tells_of_both=True,
        ),
    }
)


def _unflipped(name: str, row: LabelInferenceAttack) -> LabelInferenceAttack:
    """Return an attack that treats another attack's guesses as replaced labels and corrects them for the flips."""
    return LabelInferenceAttack(
        attack=UnflippedAttack(reader=row.attack),
        description=f"guesses of {name} are taken as replaced labels; a model of them is corrected for flips and the label added",
        reads="cut_gradient",
        multiclass=False,
        over_training=row.over_training,
        with_embeddings=True,
        tells_of_both=True,
        from_start=row.from_start,
        from_flip=True,
        of_several=row.of_several,
        quick=row.quick,
        from_moments=row.from_moments,
    )


LABEL_INFERENCE_ATTACKS: Mapping[str, LabelInferenceAttack] = MappingProxyType(
    {
        **_ATTACKS,
        **{
            f"{name}-unflipped": _unflipped(name, row)
            for name, row in _ATTACKS.items()
            if row.binary and row.reads == "cut_gradient" and row.knows == NO_LABELS and not row.from_flip
        },
    }
)
