"""Measure how well each party of a linkage by similarity could locate the keys of the others.

No party has both an attacker's view and the truth. So each party plays the attacker, and uses the other side's keys as far as it
can locate them itself. The feature party places the label party's rows by its own links, measures the distances to its true
keys, adds the run's noise, and attacks itself as the label party could. The label party places the feature party's keys by
trilateration, and attacks its own positions from there, by the true links. For a helper, each party attacks the keys that it
sent to it.

Shapes: N positions, M numbers, K links, D dimensions.
"""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from tallystick.alignment.encoding import EncodedKeys, encode_keys
from tallystick.alignment.federal import Pivots
from tallystick.alignment.nearest import PAD, Floats, euclidean, rank_distance
from tallystick.alignment.outcome import Candidates, SimilarityScale
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.attacks.findings import LocatedKeys
from tallystick.attacks.linkage.cells import Cells
from tallystick.attacks.linkage.evaluate import locate, measure_located
from tallystick.attacks.linkage.trilateration import Trilateration
from tallystick.attacks.linkage.view import (
    DistanceModel,
    FeaturePartyView,
    FiltersView,
    LabelPartyView,
    LinkageView,
    Located,
    RanksView,
)
from tallystick.config.contract import Contract
from tallystick.network.channel import Progress, no_progress
from tallystick.run_folder.folder import RunFolder

KNOWN = 10
"""Number of keys that a helper knows among those that a filter-geometry attack places."""
AUDIT_SECRET = b"a secret of the audit's own, like the run's"


@dataclass(frozen=True, kw_only=True)
class KeyUnits:
    """Dimensions that are measured together.

    Args:
        names: of the dimensions.
        unit: metres, or the keys' own.
        unit_D: size of one step of the metric's scale in that unit; 0 for every other dimension.
    """

    names: tuple[str, ...]
    unit: str
    unit_D: Floats


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """An attack on one side's keys, with the true keys.

    Args:
        view: the attacked view.
        truth_ND: the true keys of its targets.
        attacker, located: the party that could attack, and the party whose keys are located.
        stand_in: says what replaced the data that only the other side has.
    """

    view: LinkageView
    truth_ND: Floats
    attacker: str
    located: str
    stand_in: str = ""

    def findings(self, terms: SimilarityConfig, *, progress: Progress = no_progress) -> list[LocatedKeys]:
        """Run the attack, and measure its errors in each scale."""
        keys_located = []
        for name, located in locate(self.view, progress=progress).items():
            for scale in scales_of(terms):
                rng = np.random.default_rng([0, 2])
                measured = measure_located(name, located, self.truth_ND, scale.unit_D, rng=rng)
                if measured is not None:
                    keys_located.append(
                        replace(
                            measured,
                            attacker=self.attacker,
                            located=self.located,
                            unit=scale.unit,
                            dimensions=list(scale.names),
                            note=self.stand_in,
                        )
                    )
        return keys_located


def metric_of(terms: SimilarityConfig, scale: SimilarityScale | None) -> DistanceModel:
    """Return the metric by which the helper measured numbers. Without a scale, return the metric known before any link."""
    bits_D = None
    if terms.helper_sees != "clear":
        bits_D = np.array(
            [2 * d.weight * bits / extent for d, (bits, _, extent) in zip(terms.numbers, _ranges(terms), strict=True)]
        )
    scale = scale or SimilarityScale(mean=0.0, deviation=1.0, sigma=0.0)
    return DistanceModel(
        bits_per_unit_D=bits_D, window=terms.window, mean=scale.mean, deviation=scale.deviation, sigma=scale.sigma
    )


def places_of(keys: SimilarKeys, terms: SimilarityConfig) -> Floats:
    """Convert keys to the scale in which a metric of these terms measures."""
    return keys.scaled(terms, weighted=terms.helper_sees == "clear")


def units_of(terms: SimilarityConfig) -> tuple[Floats, str]:
    """Return the size of one step of that scale, per dimension: in metres if the contract gives metres for each number, else in
    the key's unit.
    """
    weighted = terms.helper_sees == "clear"
    scale_D = np.array([d.scale / (d.weight if weighted else 1.0) for d in terms.numbers])
    if all(d.metres is not None for d in terms.numbers):
        return scale_D * np.array([d.metres for d in terms.numbers], dtype=np.float64), "m"
    units = {d.unit for d in terms.numbers}
    (unit,) = units if len(units) == 1 else ("",)
    return scale_D, unit or ""


def scales_of(terms: SimilarityConfig) -> list[KeyUnits]:
    """Group the dimensions that are measured together: places in metres, and other dimensions that share a unit."""
    weighted = terms.helper_sees == "clear"
    groups: dict[str, dict[int, float]] = {}
    for place, d in enumerate(terms.numbers):
        unit = "m" if d.metres is not None else d.unit or ""
        of_one = d.scale / (d.weight if weighted else 1.0) * (d.metres or 1.0)
        groups.setdefault(unit or f" of {d.name}", {})[place] = of_one
    scales = []
    for unit, factors in groups.items():
        unit_D = np.zeros(len(terms.numbers))
        unit_D[list(factors)] = list(factors.values())
        names = tuple(terms.numbers[place].name for place in factors)
        scales.append(KeyUnits(names=names, unit="" if unit.startswith(" ") else unit, unit_D=unit_D))
    return scales


def helper_view(
    encoded: EncodedKeys, truth_ND: Floats, terms: SimilarityConfig, *, rng: np.random.Generator
) -> RanksView | FiltersView:
    """Build the helper's view of one side's numbers, or of its filters and a few keys that the helper knows."""
    if terms.helper_sees == "filters":
        known_T = np.sort(rng.permutation(len(truth_ND))[:KNOWN])
        filters = tuple(encoded.filters[d.name] for d in terms.numbers)
        return FiltersView(filters=filters, known_T=known_T, known_TD=truth_ND[known_T])
    bits_D, low_D, extent_D = np.array(_ranges(terms)).T
    return RanksView(ranks_ND2=encoded.ranks_ND2, bits_D=bits_D, low_D=low_D, extent_D=extent_D)


def located_by_helper(
    keys: SimilarKeys,
    sent_keys: SimilarKeys,
    terms: SimilarityConfig,
    *,
    party: str,
    helper: str,
    progress: Progress = no_progress,
) -> list[LocatedKeys]:
    """Locate a party's keys as the helper could, by the keys it received. If it sees them in the clear, there is nothing to
    attack.
    """
    if terms.helper_sees == "clear" or not terms.numbers:
        return []
    rng = np.random.default_rng([0, 3])
    truth_ND = places_of(keys, terms)
    sample = np.sort(rng.permutation(len(keys))[: 1500 + KNOWN])
    numbers_only = terms.model_copy(update={"dimensions": terms.numbers, "block": 0})
    some = SimilarKeys(numbers_RD=sent_keys.numbers_RD[sample])
    view = helper_view(encode_keys(some, numbers_only, AUDIT_SECRET), truth_ND[sample], numbers_only, rng=rng)
    attacked = Attacked(view=view, truth_ND=truth_ND[sample], attacker=helper, located=party)
    return attacked.findings(terms, progress=progress)


def attack_on_feature_party(
    truth_MD: Floats, sent_MD: Floats, candidates: Candidates, terms: SimilarityConfig, *, label_party: str, party: str
) -> tuple[Attacked, Located]:
    """Locate a feature party's keys as the label party could. The label party's rows are where this feature party places them.

    Arguments are the true keys and the sent keys, both by number.
    """
    rng = np.random.default_rng([0, 4])
    metric = metric_of(terms, candidates.scale)
    view = FeaturePartyView(metric=metric, own_MD=sent_MD, numbers_NK=candidates.numbers_NK)
    cells = Cells()(view, rng=rng)
    numbers_TK = candidates.numbers_NK[cells.targets_T]
    if terms.helper_sees == "clear":
        distance_TK = euclidean(cells.place_TD[:, None], sent_MD[numbers_TK])
    else:
        ranks = []
        for place, dimension in enumerate(terms.numbers):
            pivots = Pivots.of(terms, dimension, AUDIT_SECRET)
            ranks.append((pivots.ranks(cells.place_TD[:, place]), pivots.ranks(sent_MD[:, place])))
        own_TD2, others_MD2 = (np.stack(side, axis=1) for side in zip(*ranks, strict=True))
        weights_D = np.array([d.weight for d in terms.numbers])
        distance_TK = rank_distance(own_TD2[:, None], others_MD2[numbers_TK], weights_D=weights_D)
    similarity_TK = metric.similarity(distance_TK, np.asarray(rng.standard_normal(distance_TK.shape)))
    played = LabelPartyView(
        metric=metric,
        own_ND=cells.place_TD,
        numbers_NK=numbers_TK,
        similarity_NK=np.where(numbers_TK == PAD, 0.0, similarity_TK),
    )
    stand_in = (
        f"{label_party} has its own rows' keys, which {party} does not know: {len(cells.targets_T)} rows of {label_party} "
        "were put where their links place them"
    )
    return Attacked(view=played, truth_ND=truth_MD, attacker=label_party, located=party, stand_in=stand_in), cells


def attack_on_label_party(
    truth_ND: Floats, sent_ND: Floats, candidates: Candidates, terms: SimilarityConfig, *, peer: str, party: str
) -> tuple[Attacked | None, Located]:
    """Locate the label party's keys as a feature party could. The feature party's rows are where the label party places them.

    Arguments are the true keys and the sent keys, both by position. Return None if too few keys can be placed.
    """
    assert candidates.similarity_NK is not None, "the label party learns similarities"
    metric = metric_of(terms, candidates.scale)
    view = LabelPartyView(
        metric=metric,
        own_ND=sent_ND,
        numbers_NK=candidates.numbers_NK,
        similarity_NK=candidates.similarity_NK.astype(np.float64),
    )
    located = Trilateration()(view, rng=np.random.default_rng([0, 5]))
    count = len(located.targets_T)
    if count < 3:
        return None, located
    # Only located keys can replace the feature party's, so links to other keys are left out of the view.
    new_number = np.full(candidates.rows + 1, PAD)
    new_number[located.targets_T] = np.arange(count)
    played = FeaturePartyView(metric=metric, own_MD=located.place_TD, numbers_NK=new_number[candidates.numbers_NK])
    stand_in = (
        f"{peer} has its own rows' keys, which {party} does not know: {count} rows of {peer} were put where trilateration "
        "places them"
    )
    return Attacked(view=played, truth_ND=truth_ND, attacker=peer, located=party, stand_in=stand_in), located


def sent_keys(contract: Contract, folder: RunFolder, keys: SimilarKeys) -> SimilarKeys:
    """Return the keys as they were sent: with the stored noise, if the contract asks for noise."""
    numbers_RD = folder.load_noisy_keys(of=keys.noise_name(contract.hash))
    return keys if numbers_RD is None else keys.with_numbers(numbers_RD)


def _ranges(terms: SimilarityConfig) -> "list[tuple[int, float, float]]":
    """Return pivots, smallest pivot and length of every number's range, in the scale of its distances."""
    ranges = []
    for d in terms.numbers:
        low, high = d.bounds
        ranges.append((terms.pivots(d), low / d.scale - terms.window, (high - low) / d.scale + 2 * terms.window))
    return ranges
