"""Screen columns: a party that has many columns closes those that do not help.

A network with hundreds of columns of noise overfits to some of them. Each party compares its own columns with *shadows*: the same
columns with the vectors of other rows of the batch, which show how large a figure is by chance. Of a cut gradient only its
direction counts, row by row.

Threat model: that of training. Nothing is sent for screening, and it reads only what its party has anyway: a feature party the
cut gradients, the label party its labels after the defences. No formal guarantee. Not protected: later embeddings no longer
depend on closed columns, which a receiver may notice. A label party that deviates from the protocol can send gradients that
choose which columns are closed.

Columns that are useless alone may be useful together, such as two columns whose product determines the label. So pairs are
compared as well: in each column a row is above its median or not, and the product of two columns' deviations is compared with the
vectors.

Shapes: B rows of a batch, C columns, D numbers of a row's vector, E numbers of a summed vector, K bins, S shadows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tallystick.cut.forward import FeatureSource
from tallystick.models.folds import FoldedBottom, FoldedLabelModel
from tallystick.models.tabular import Columns, screened_columns
from tallystick.privacy.randomness import Seed, generator_of
from tallystick.tables.features import Features
from tallystick.training.folds import FoldedObjective
from tallystick.training.objective import Objective, Supervised
from tallystick.training.plan import Batch, Schedule

BINS = 9
SHADOWS = 3
SILENT = 0.8
"""Quantile of the shadows' figures. A column below it is no better than a shadow."""
_NAMED = 20
"""Greatest number of closed columns that are named."""
MOSTLY_SILENT = 0.56
"""Share of silent columns from which columns are closed. About this many are below that quantile if 70 % are useless."""
OPEN = 0.99
"""Quantile of the shadows' figures that a column then has to reach."""
CLEARLY = 2.0
"""Factor by which the best column must exceed that quantile. If there are too few rows to tell, no column is closed."""
TOGETHER = 1.5
"""Factor by which a pair of columns must exceed the largest figure of shadow pairs to stay open for its joint effect."""
PAIRED = 512
"""Greatest number of columns for comparing pairs. With more columns, those that are useful only together may be closed."""
_PAIR_NUMBERS = 8  # a row's vector is summed to this many numbers for pairs, because C x C of each are kept
_SAMPLED = 10_000  # training rows that determine the bins
_OWN_ROWS = 4096  # rows of the label party's labels at a time
_COLUMNS = 256  # columns at a time, because their bins are a matrix


def nobody_hears(open_C: Tensor) -> None:
    """Ignore which columns are open."""


@dataclass(frozen=True, kw_only=True)
class Screening:
    """Settings of screening: the seed of the shadows, and a callback that is told which columns stay open."""

    seed: Seed = field(repr=False)
    settled: Callable[[Tensor], None] = nobody_hears


class ColumnFigures:
    """For each column and its shadows, the variance of rows' vectors between its bins, compared with that within the bins.

    It is the F ratio of one-way analysis of variance, over all numbers of the vectors together; in each batch only deviations
    from its mean count. A number's bins are the octiles of training rows, with their least value as a separate bin; a category's
    bins are its first codes, and the rest together.

    Args:
        sample: training rows, whose numbers determine the bins.
        width: D.
    """

    def __init__(self, sample: Features, *, width: int) -> None:
        sorted_FN = sample.numeric_NF.t().sort(dim=1).values
        at = torch.arange(BINS - 1, device=sorted_FN.device) * (len(sample) - 1) // (BINS - 1)
        self._edges_FK = sorted_FN[:, at].contiguous()
        columns = sample.numeric_NF.shape[1] + sample.categorical_NG.shape[1]
        device = sorted_FN.device
        self.counts_CK = torch.zeros(columns, BINS, device=device, dtype=torch.float64)
        self.sums_CKSD = torch.zeros(columns, BINS, 1 + SHADOWS, width, device=device, dtype=torch.float64)
        self.squares = torch.zeros((), device=device, dtype=torch.float64)
        paired = columns if columns <= PAIRED else 0
        # of the columns, and of their first shadows
        self.pairs_2ECC = torch.zeros(2, min(width, _PAIR_NUMBERS), paired, paired, device=device)

    def add(self, features: Features, vector_BD: Tensor, generator: torch.Generator) -> None:
        """Add a batch. The generator shuffles the vectors for the shadows."""
        centred_BD = vector_BD - vector_BD.mean(dim=0)
        rows = len(centred_BD)
        shuffled = [centred_BD[torch.randperm(rows, generator=generator).to(centred_BD.device)] for _ in range(SHADOWS)]
        vectors_BV = torch.cat([centred_BD, *shuffled], dim=1)
        number_FB = features.numeric_NF.t().contiguous()
        bins_BF = torch.searchsorted(self._edges_FK, number_FB).t()  # how many edges are below a number
        bins_BC = torch.cat([bins_BF, features.categorical_NG.clamp(max=BINS - 1)], dim=1)
        for start in range(0, bins_BC.shape[1], _COLUMNS):
            part = slice(start, start + _COLUMNS)
            is_in_BCK = torch.nn.functional.one_hot(bins_BC[:, part], BINS).to(vectors_BV.dtype)
            sums = is_in_BCK.flatten(1).t() @ vectors_BV
            self.sums_CKSD[part] += sums.view(self.sums_CKSD[part].shape)
            self.counts_CK[part] += is_in_BCK.sum(dim=0)
        self.squares += centred_BD.double().square().sum()
        if self.pairs_2ECC.shape[2]:
            # Each row's vector times the product of two columns' deviations
            vectors = (centred_BD, shuffled[0])
            above_BF = features.numeric_NF > self._edges_FK[:, (BINS - 1) // 2]
            frequent_BG = features.categorical_NG <= 1  # the most frequent code, or none
            halves_BC = torch.cat([above_BF, frequent_BG], dim=1).to(vectors[0].dtype)
            halves_BC -= halves_BC.mean(dim=0)
            for kind, vector_BD in enumerate(vectors):
                numbers = self.pairs_2ECC.shape[1]
                for place in range(numbers):
                    number_B = vector_BD[:, place::numbers].sum(dim=1)
                    self.pairs_2ECC[kind, place] += (halves_BC * number_B[:, None]).t() @ halves_BC

    def tell_together(self) -> Tensor:
        """Mark the columns (C,) of pairs that are better than any pair of shadows by chance."""
        strength_2CC = self.pairs_2ECC.square().sum(dim=1)
        if not strength_2CC.numel():
            return torch.zeros(len(self.counts_CK), dtype=torch.bool, device=self.counts_CK.device)
        strength_2CC.diagonal(dim1=1, dim2=2).zero_()
        return (strength_2CC[0] > TOGETHER * strength_2CC[1].max()).any(dim=0)

    def ratios(self) -> tuple[Tensor, Tensor]:
        """Return the figures (C,) of the columns, and those of their shadows (C, S); 0 if there is nothing to compare."""
        between_CS = (self.sums_CKSD.square().sum(dim=3) / self.counts_CK.clamp(min=1)[:, :, None]).sum(dim=1)
        bins_C = (self.counts_CK > 0).sum(dim=1)
        rows = self.counts_CK[0].sum()
        within_CS = (self.squares - between_CS).clamp(min=0) / (rows - bins_C).clamp(min=1)[:, None]
        ratios_CS = torch.nan_to_num(between_CS / (bins_C - 1).clamp(min=1)[:, None] / within_CS)
        return ratios_CS[:, 0], ratios_CS[:, 1:]


def open_columns(ratio_C: Tensor, shadows_CS: Tensor, together_C: Tensor) -> Tensor:
    """Choose the columns that stay open (C,): all of them, unless most are silent and some clearly are not.

    Columns that are useful only together with another one stay open.
    """
    by_chance = shadows_CS.flatten()
    is_silent_C = ratio_C < torch.quantile(by_chance, SILENT)
    least = torch.quantile(by_chance, OPEN)
    closes = is_silent_C.double().mean() >= MOSTLY_SILENT and ratio_C.max() > CLEARLY * least
    return (ratio_C >= least) | together_C if closes else torch.ones_like(is_silent_C)


class ColumnScreen:
    """A screen of a feature party's columns by the cut gradients of its first epoch. It closes some at that epoch's last step.

    Args:
        columns: columns of its bottom.
        source: its columns by position.
        schedule: the batches.
        epoch: number of the first epoch.
        screening: seed of the shadows, and a callback.
    """

    def __init__(self, columns: Columns, source: FeatureSource, schedule: Schedule, *, epoch: int, screening: Screening) -> None:
        self._columns, self._source, self._schedule, self._screening = columns, source, schedule, screening
        self._last_step = schedule.steps_before(epoch + 1)
        self._figures: ColumnFigures | None = None

    def crossed(self, batch: Batch, features: Features, gradient_BD: Tensor) -> None:
        """Add the cut gradient of a step."""
        if batch.step > self._last_step:
            return
        figures = self._begun(gradient_BD.shape[1])
        generator = generator_of(self._screening.seed, "screening", batch.step)
        figures.add(features, nn.functional.normalize(gradient_BD, eps=torch.finfo(gradient_BD.dtype).tiny), generator)
        if batch.step == self._last_step:
            close(self._columns, figures, self._screening)
            self._figures = None

    def tensors(self) -> dict[str, Tensor]:
        """Return its tensors for a checkpoint."""
        if self._figures is None:
            return {}
        figures = self._figures
        return {
            "screening/counts": figures.counts_CK,
            "screening/sums": figures.sums_CKSD,
            "screening/squares": figures.squares,
            "screening/pairs": figures.pairs_2ECC,
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that ``tensors`` returned. Other names are ignored."""
        if (sums_CKSD := tensors.get("screening/sums")) is not None:
            figures = self._begun(sums_CKSD.shape[3])
            figures.sums_CKSD.copy_(sums_CKSD)
            figures.counts_CK.copy_(tensors["screening/counts"])
            figures.squares.copy_(tensors["screening/squares"])
            figures.pairs_2ECC.copy_(tensors["screening/pairs"])

    def _begun(self, width: int) -> ColumnFigures:
        if self._figures is None:
            self._figures = ColumnFigures(self._source(_sampled(self._schedule.train_N)), width=width)
        return self._figures


class FoldedScreen:
    """Screens for several networks side by side, each by its own part of the cut gradients.

    Args:
        each: the networks' screens, in order.
    """

    def __init__(self, each: Sequence[ColumnScreen]) -> None:
        self._each = each

    def crossed(self, batch: Batch, features: Features, gradient_BD: Tensor) -> None:
        """Add the cut gradient of a step."""
        for screen, part_BD in zip(self._each, gradient_BD.chunk(len(self._each), dim=1), strict=True):
            screen.crossed(batch, features, part_BD)

    def tensors(self) -> dict[str, Tensor]:
        """Return their tensors for a checkpoint."""
        return {
            f"{number}/{name}": tensor for number, screen in enumerate(self._each) for name, tensor in screen.tensors().items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that ``tensors`` returned. Other names are ignored."""
        for number, screen in enumerate(self._each):
            start = f"{number}/"
            screen.restore({name.removeprefix(start): each for name, each in tensors.items() if name.startswith(start)})


def feature_screen(
    bottom: nn.Module, source: FeatureSource, schedule: Schedule, *, epoch: int, screening: Screening | None
) -> ColumnScreen | FoldedScreen | None:
    """Build the screen of a feature party's columns in a training that begins with this epoch, or None without screening."""
    screened = [screened_columns(part) for part in (bottom.members if isinstance(bottom, FoldedBottom) else [bottom])]
    if screening is None:
        return None
    screens = [
        ColumnScreen(columns, source, schedule, epoch=epoch, screening=screening) for columns in screened if columns is not None
    ]
    return FoldedScreen(screens) if len(screens) > 1 else screens[0] if screens else None


def screen_own_columns(
    model: nn.Module, source: FeatureSource, objective: Objective, train_N: Tensor, screening: Screening | None
) -> None:
    """Screen the label party's columns by its labels, before the first step; for several networks, by the rows of each."""
    if isinstance(model, FoldedLabelModel) and isinstance(objective, FoldedObjective):
        for member, each in enumerate(model.members):
            screen_own_columns(each, source, objective.each, objective.taught(member, train_N), screening)
        return
    columns = screened_columns(model)
    if columns is None or screening is None or not isinstance(objective, Supervised):
        return
    label_ND = objective.deviations(train_N)
    figures = ColumnFigures(source(_sampled(train_N)), width=label_ND.shape[1])
    parts = zip(torch.split(train_N, _OWN_ROWS), torch.split(label_ND, _OWN_ROWS), strict=True)
    for number, (index_B, label_BD) in enumerate(parts):
        figures.add(source(index_B), label_BD, generator_of(screening.seed, "screening of own columns", number))
    close(columns, figures, screening)


def close(columns: Columns, figures: ColumnFigures, screening: Screening) -> None:
    """Close the columns that do not stay open."""
    open_C = open_columns(*figures.ratios(), figures.tell_together())
    assert columns.gates is not None, "only these are screened"
    columns.gates.copy_(open_C)
    screening.settled(open_C)


def _sampled(train_N: Tensor) -> Tensor:
    return train_N[:: -(-len(train_N) // _SAMPLED)]


def screening_notes(names: Sequence[str], module: nn.Module) -> list[str]:
    """Say which columns stay open, for each of several networks side by side. Say nothing if no column may be closed."""
    screened = [part.gates for part in module.modules() if isinstance(part, Columns) and part.gates is not None]
    notes = []
    for number, open_C in enumerate(screened, 1):
        sentence = screening_sentence(names, open_C)
        network = f" (network {number} of {len(screened)})" if len(screened) > 1 else ""
        notes.append(f"{sentence[0].upper()}{sentence[1:]}{network}.")
    return notes


def screening_sentence(names: Sequence[str], open_C: Tensor) -> str:
    """Say how many of these columns stay open, and which were closed. The text is only for this party."""
    closed = [name for name, is_open in zip(names, open_C.tolist(), strict=True) if not is_open]
    if not closed:
        return f"screening: all {len(open_C)} own columns stay open (encoding.screening)"
    closed_names = ", ".join(map(repr, closed[:_NAMED])) + (f" and {len(closed) - _NAMED} more" if len(closed) > _NAMED else "")
    return (
        f"screening: {len(open_C) - len(closed)} of {len(open_C)} own columns stay open, and the others were closed because "
        f"they did not help (encoding.screening): {closed_names}"
    )
