"""What each seat of a linkage by similarity could locate: views put together from what a party has, attacked, and measured.

No party has both an attacker's view and the truth about it, so each plays the other with what it could itself locate. The feature
party places the label party's rows by its own links, measures the distances to its true keys, adds the run's noise and attacks
itself as the label party could. The label party places the feature party's keys by trilateration and attacks its own positions
from there, by the true links. What a helper could locate is measured on what this party sent it.

Shapes: N positions, M numbers, K links, D dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from tallystick.alignment.encoding import EncodedKeys, encode_keys
from tallystick.alignment.federal import Pivots
from tallystick.alignment.improvement import estimated_improvement
from tallystick.alignment.key_noise import key_guarantee
from tallystick.alignment.nearest import PAD, Floats, Integers, euclidean, rank_distance
from tallystick.alignment.outcome import Alignment, Candidates, SimilarityScale
from tallystick.attacks.linkage.evaluate import LocatedError, evaluate_linkage
from tallystick.attacks.linkage.table import LINKAGE_ATTACKS
from tallystick.attacks.linkage.view import DistanceModel, LinkageView
from tallystick.config.contract import Contract
from tallystick.config.similarity import SimilarityConfig
from tallystick.data.keys import Keys
from tallystick.data.similar_keys import SimilarKeys
from tallystick.job.job import Job
from tallystick.job.phases.align import noisy_keys_name
from tallystick.party.folder import RunFolder
from tallystick.report import result as shown
from tallystick.structs import prepared

NOTE = "linkage"
KNOWN = 10
"""Keys that a helper knows of those that a filter-geometry attack places."""
AUDIT_SECRET = b"a secret of the audit's own, like the run's"


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """What an attack located.

    Args:
        attack: its name in the table.
        attacker: who could make it.
        located: whose keys.
        error: how far off it is.
        stand_in: what stood in for what only the other side has; empty where nothing had to.
    """

    attack: str
    attacker: str
    located: str
    error: LocatedError
    stand_in: str = ""


def audit_linkage(job: Job, keys: Keys, alignment: Alignment) -> shown.LinkageSummary | None:
    """Attack what this party's part of the linkage gave the others, once per alignment; None where nothing was linked by
    similarity.

    No guarantee: no attack here found more, another may.
    """
    terms = job.contract.alignment.similarity
    if terms is None or keys.similar is None:
        return None
    if kept := job.folder.noted(NOTE):
        return msgspec.convert(kept, prepared(shown.LinkageSummary))
    watcher = job.logbook.watcher
    summary = summary_of(terms, alignment, party=job.name)
    if terms.numbers and not terms.texts:
        watcher.say("attacking what this side gave the linkage, as the others could")
        label, helper = job.contract.label_party, job.contract.helper or ""
        sent = sent_keys(job.contract, job.folder, keys.similar)
        exposures = exposure_to_helper(keys.similar, sent, terms, party=job.name, helper=helper)
        if job.is_label:
            rows_N = alignment.rows_N
            exposures += exposure_of_label_party(keys.similar, sent, rows_N, alignment.candidates, terms, party=job.name)
        else:
            found = alignment.candidates[job.name]
            exposures += exposure_of_feature_party(keys.similar, sent, found, terms, party=job.name, label_party=label)
        unit = units_of(terms)[1]
        summary = msgspec.structs.replace(summary, attacks=[_shown(exposure, unit) for exposure in exposures])
        for attack in summary.attacks:
            watcher.say(attack.sentence())
    job.folder.note(NOTE, msgspec.to_builtins(summary))
    return summary


def summary_of(terms: SimilarityConfig, alignment: Alignment, *, party: str) -> shown.LinkageSummary:
    """What can be said of an alignment's links without any attack."""
    candidates = alignment.candidates
    notes = []
    if terms.helper_sees == "clear":
        notes.append("The helper saw the keys in the clear, as the contract says: there was nothing left to attack.")
    if terms.texts:
        notes.append("Keys with text are not attacked here: that is no sign that they are safe.")
    histograms = {}
    for name, found in candidates.items():
        if found.similarity_NK is not None:
            counts, edges = np.histogram(found.similarity_NK[found.numbers_NK != PAD], bins=20)
            histograms[name] = shown.SimilarityHistogram(edges=edges.tolist(), counts=counts.tolist())
    return shown.LinkageSummary(
        party=party,
        neighbors=terms.links,
        helper_sees=terms.helper_sees,
        guarantee=key_guarantee(terms),
        sigma={name: found.scale.sigma for name, found in candidates.items() if found.scale is not None},
        links={name: int((found.numbers_NK != PAD).sum()) for name, found in candidates.items()},
        improvement={name: estimated_improvement(found) for name, found in candidates.items() if found.similarity_NK is not None},
        similarities=histograms,
        notes=notes,
    )


def _shown(exposure: Exposure, unit: str) -> shown.LocatedResult:
    error = exposure.error
    return shown.LocatedResult(
        name=exposure.attack,
        attacker=exposure.attacker,
        located=exposure.located,
        placed=error.placed,
        median=error.median,
        low=error.low,
        high=error.high,
        tenth=error.tenth,
        chance=error.chance,
        unit=unit,
        note=f"played with {exposure.stand_in}" if exposure.stand_in else "",
    )


def metric_of(terms: SimilarityConfig, scale: SimilarityScale | None) -> DistanceModel:
    """How the helper measured numbers; without a scale, as far as that is known before any link."""
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
    """Keys in the scale in which a metric of these terms measures."""
    return keys.scaled(terms, weighted=terms.helper_sees == "clear")


def units_of(terms: SimilarityConfig) -> tuple[Floats, str]:
    """What one of that scale is, per dimension: metres where the contract says so of every number, else the key's own unit."""
    weighted = terms.helper_sees == "clear"
    scale_D = np.array([d.scale / (d.weight if weighted else 1.0) for d in terms.numbers])
    if all(d.metres is not None for d in terms.numbers):
        return scale_D * np.array([d.metres for d in terms.numbers], dtype=np.float64), "m"
    units = {d.unit for d in terms.numbers}
    (unit,) = units if len(units) == 1 else ("",)
    return scale_D, unit or ""


def label_view(own_ND: Floats, candidates: Candidates, terms: SimilarityConfig) -> LinkageView:
    """The label party's view: its keys by position, links, noisy similarities."""
    return LinkageView(
        seat="label party",
        targets=candidates.rows,
        metric=metric_of(terms, candidates.scale),
        own_ND=own_ND,
        numbers_NK=candidates.numbers_NK,
        similarity_NK=None if candidates.similarity_NK is None else candidates.similarity_NK.astype(np.float64),
    )


def feature_view(own_MD: Floats, candidates: Candidates, terms: SimilarityConfig) -> LinkageView:
    """A feature party's view: its keys by number, links."""
    return LinkageView(
        seat="feature party",
        targets=len(candidates.numbers_NK),
        metric=metric_of(terms, candidates.scale),
        own_ND=own_MD,
        numbers_NK=candidates.numbers_NK,
    )


def helper_view(encoded: EncodedKeys, truth_ND: Floats, terms: SimilarityConfig, *, rng: np.random.Generator) -> LinkageView:
    """The helper's view of one side's keys; of filters with a few keys that it knows."""
    known = np.sort(rng.permutation(len(truth_ND))[:KNOWN])
    ranges = list(_ranges(terms)) if terms.helper_sees != "clear" else []
    numbers = [encoded.filters[d.name] for d in terms.numbers if d.name in encoded.filters]
    return LinkageView(
        seat="helper",
        targets=encoded.rows,
        metric=metric_of(terms, None),
        ranks_ND2=encoded.ranks_ND2,
        filters=tuple(numbers) or None,
        known_T=known,
        known_TD=truth_ND[known],
        bits_D=np.array([bits for bits, _, _ in ranges]),
        low_D=np.array([low for _, low, _ in ranges]),
        extent_D=np.array([extent for _, _, extent in ranges]),
    )


def exposure_to_helper(
    keys: SimilarKeys, sent: SimilarKeys, terms: SimilarityConfig, *, party: str, helper: str, seed: int = 0
) -> list[Exposure]:
    """What the helper could locate of a party's keys by those that were sent; nothing is left where it sees them in the clear."""
    if terms.helper_sees == "clear" or not terms.numbers:
        return []
    rng = np.random.default_rng([seed, 3])
    truth_ND = places_of(keys, terms)
    sample = np.sort(rng.permutation(len(keys))[: 1500 + KNOWN])
    numbers_only = terms.model_copy(update={"dimensions": terms.numbers, "block": 0})
    some = SimilarKeys(numbers_RD=sent.numbers_RD[sample])
    view = helper_view(encode_keys(some, numbers_only, AUDIT_SECRET), truth_ND[sample], numbers_only, rng=rng)
    found = evaluate_linkage(view, truth_ND[sample], units_of(terms)[0], seed=seed)
    return [Exposure(attack=name, attacker=helper, located=party, error=error) for name, error in found.items()]


def exposure_of_feature_party(
    keys: SimilarKeys,
    sent: SimilarKeys,
    candidates: Candidates,
    terms: SimilarityConfig,
    *,
    party: str,
    label_party: str,
    seed: int = 0,
) -> list[Exposure]:
    """What the label party could locate of a feature party's keys, measured by the feature party."""
    assert candidates.own_rows is not None, "the feature party knows which of its rows a number is"
    rng = np.random.default_rng([seed, 4])
    truth_MD, sent_MD = (places_of(some, terms)[candidates.own_rows] for some in (keys, sent))
    metric = metric_of(terms, candidates.scale)
    view = feature_view(sent_MD, candidates, terms)
    cells = LINKAGE_ATTACKS["cells"].attack(view, rng=rng)
    numbers_TK = candidates.numbers_NK[cells.targets_T]
    distance_TK = _measured(cells.place_TD, sent_MD, numbers_TK, terms)
    similarity_TK = metric.similarity(distance_TK, np.asarray(rng.standard_normal(distance_TK.shape)))
    played = LinkageView(
        seat="label party",
        targets=candidates.rows,
        metric=metric,
        own_ND=cells.place_TD,
        numbers_NK=numbers_TK,
        similarity_NK=np.where(numbers_TK == PAD, 0.0, similarity_TK),
    )
    found = evaluate_linkage(played, truth_MD, units_of(terms)[0], seed=seed)
    stand_in = f"{len(cells.targets_T)} rows of {label_party}, placed by their links, at the distances that they then have"
    return [
        Exposure(attack=name, attacker=label_party, located=party, error=error, stand_in=stand_in)
        for name, error in found.items()
    ]


def exposure_of_label_party(
    keys: SimilarKeys,
    sent: SimilarKeys,
    rows_N: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
    candidates: Mapping[str, Candidates],
    terms: SimilarityConfig,
    *,
    party: str,
    seed: int = 0,
) -> list[Exposure]:
    """What each feature party could locate of the label party's keys, measured by the label party."""
    truth_ND, sent_ND = (places_of(some, terms)[rows_N] for some in (keys, sent))
    exposures = []
    for name, found in candidates.items():
        view = label_view(sent_ND, found, terms)
        located = LINKAGE_ATTACKS["trilateration"].attack(view, rng=np.random.default_rng([seed, 5]))
        if len(located.targets_T) < 3:
            continue
        # Only keys that could be located stand in: links to others are left out of the played view.
        new_number = np.full(found.rows + 1, PAD)
        new_number[located.targets_T] = np.arange(len(located.targets_T))
        played = feature_view(located.place_TD, _renumbered(found, new_number, len(located.targets_T)), terms)
        errors = evaluate_linkage(played, truth_ND, units_of(terms)[0], seed=seed)
        stand_in = f"{len(located.targets_T)} rows of {name}, as trilateration places them"
        exposures += [
            Exposure(attack=attack, attacker=name, located=party, error=error, stand_in=stand_in)
            for attack, error in errors.items()
        ]
    return exposures


def sent_keys(contract: Contract, folder: RunFolder, keys: SimilarKeys) -> SimilarKeys:
    """The keys as they were sent: with the noise that is kept, where the contract asks for it."""
    numbers_RD = folder.load_noisy_keys(of=noisy_keys_name(contract, keys))
    return keys if numbers_RD is None else keys.with_numbers(numbers_RD)


def _measured(own_TD: Floats, others_MD: Floats, numbers_TK: Integers, terms: SimilarityConfig) -> Floats:
    """Distances of these links as the helper measures them, the grain of its pivots included."""
    if terms.helper_sees == "clear":
        return euclidean(own_TD[:, None], others_MD[numbers_TK])
    ranks = []
    for place, dimension in enumerate(terms.numbers):
        pivots = Pivots.of(terms, dimension, AUDIT_SECRET)
        ranks.append((pivots.ranks(own_TD[:, place]), pivots.ranks(others_MD[:, place])))
    own_TD2, others_MD2 = (np.stack(side, axis=1) for side in zip(*ranks, strict=True))
    weights_D = np.array([d.weight for d in terms.numbers])
    return rank_distance(own_TD2[:, None], others_MD2[numbers_TK], weights_D=weights_D)


def _renumbered(found: Candidates, new_number: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", rows: int) -> Candidates:
    return Candidates(numbers_NK=new_number[found.numbers_NK], rows=rows, scale=found.scale)


def _ranges(terms: SimilarityConfig) -> "list[tuple[int, float, float]]":
    """Pivots, least pivot and length of every number's range, in the scale of its distances."""
    ranges = []
    for d in terms.numbers:
        assert d.low is not None, "checked for all but keys in the clear"
        assert d.high is not None, "checked for all but keys in the clear"
        extent = (d.high - d.low) / d.scale + 2 * terms.window
        ranges.append((terms.pivots(d), d.low / d.scale - terms.window, extent))
    return ranges
