"""Audit what a linkage by similarity gave away. The findings are attacks, a map, examples and distributions.

It uses only this party's own view: its keys, the links that it received, and the places where an attack on these links puts the
other side's keys. It sends nothing.

Shapes: N positions, M numbers, K links, D dimensions, T targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from tallystick import results
from tallystick.alignment.improvement import estimated_improvement
from tallystick.alignment.key_noise import key_guarantee
from tallystick.alignment.nearest import PAD, Floats
from tallystick.alignment.outcome import Alignment, Candidates
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity import seen_by_helper
from tallystick.alignment.terms import SimilarityConfig
from tallystick.attacks.findings import NamedKeys
from tallystick.attacks.linkage.view import Located
from tallystick.audit.located_keys import (
    Attacked,
    attack_on_feature_party,
    attack_on_label_party,
    located_by_helper,
    metric_of,
    places_of,
    scales_of,
    sent_keys,
)
from tallystick.audit.named_keys import (
    MOST_LINKED,
    texts_named_by_feature_party,
    texts_named_by_helper,
    texts_named_by_label_party,
)
from tallystick.config.contract import Contract
from tallystick.msgspec_threads import prepared
from tallystick.network.channel import Progress
from tallystick.run_folder.folder import RunFolder

NOTE = "linkage"
BINS = 20
ON_THE_MAP = 40
"""Number of the other side's keys on a map, with the links to them."""
LINKS_OF_ONE = 6
"""Number of links on the map for each of these keys."""
OTHERS_ON_THE_MAP = 400
EXAMPLES = 6


@dataclass(frozen=True, kw_only=True)
class LinkedSide:
    """One party's side of a linkage, as its audit sees it.

    Args:
        contract: of the run.
        party: this party's name.
        folder: the folder of the keys' noise.
        keys: this party's own keys.
        alignment: the links that it received.
        progress: called as attacks proceed.
    """

    contract: Contract
    party: str
    folder: RunFolder
    keys: SimilarKeys
    alignment: Alignment
    progress: Progress

    @property
    def is_label(self) -> bool:
        """Tell whether this is the label party's side."""
        return self.party == self.contract.label_party


def kept_linkage(folder: RunFolder) -> results.LinkageSummary | None:
    """Load what the audit of this run's linkage found, or None if it was not audited yet."""
    note = folder.noted(NOTE)
    return msgspec.convert(note, prepared(results.LinkageSummary)) if note else None


def keep_linkage(folder: RunFolder, summary: results.LinkageSummary) -> None:
    """Keep the findings, for a run that is resumed."""
    folder.note(NOTE, msgspec.to_builtins(summary))


def without_rows(summary: results.LinkageSummary) -> results.LinkageSummary:
    """Return the findings without anything that shows single rows: places on maps, and texts."""
    return msgspec.structs.replace(summary, maps=[], examples=[])


def audit_linkage(side: LinkedSide, terms: SimilarityConfig) -> results.LinkageSummary:
    """Attack what this party's part of the linkage gave the others.

    No guarantee: no attack here found more, another may.
    """
    contract, progress, keys, alignment = side.contract, side.progress, side.keys, side.alignment
    sent_numbers = sent_keys(contract, side.folder, keys)
    helper = contract.helper or ""
    found_keys = located_by_helper(keys, sent_numbers, terms, party=side.party, helper=helper, progress=progress)
    maps, before = [], {}
    if terms.numbers and not terms.texts:
        truth_ND, sent_ND = (places_of(some, terms)[alignment.own_rows] for some in (keys, sent_numbers))
        for peer in contract.feature_parties if side.is_label else (contract.label_party,):
            attacked: Attacked | None
            if side.is_label:
                links = alignment.candidates[peer]
                attacked, located = attack_on_label_party(truth_ND, sent_ND, links, terms, peer=peer, party=side.party)
                if links.scale is not None and links.scale.sigma:
                    # Compute the similarities before the helper's noise from the places that the attack found
                    metric = metric_of(terms, links.scale)
                    place_M = np.full(links.rows, -1)
                    place_M[located.targets_T] = np.arange(len(located.targets_T))
                    position_L, link_L = np.nonzero(links.numbers_NK != PAD)
                    place_L = place_M[links.numbers_NK[position_L, link_L]]
                    kept_L = place_L >= 0
                    distance_L = metric.distance(sent_ND[position_L[kept_L]], located.place_TD[place_L[kept_L]])
                    before[peer] = (-distance_L - metric.mean) / metric.deviation
            else:
                links = alignment.candidates[side.party]
                attacked, located = attack_on_feature_party(truth_ND, sent_ND, links, terms, label_party=peer, party=side.party)
            found_keys += attacked.findings(terms, progress=progress) if attacked is not None else []
            maps.append(_map(truth_ND, located, links, terms, names=(side.party, peer)))
    text_names, notes = _texts_named(side, terms)
    summary = summary_of(terms, alignment, party=side.party, before=before)
    return msgspec.structs.replace(
        summary,
        attacks=found_keys,
        named=text_names,
        notes=[*summary.notes, *notes],
        maps=[one for one in maps if one.links],
        examples=_examples(keys, alignment, party=side.party) if terms.texts else [],
    )


def _texts_named(side: LinkedSide, terms: SimilarityConfig) -> tuple[list[NamedKeys], list[str]]:
    """Measure which of this party's text keys the helper and the peers could name. Also return what was not measured."""
    notes: list[str] = []
    if not terms.texts:
        return [], notes
    if terms.numbers and terms.helper_sees == "filters":
        notes.append(
            "Keys with text are not attacked if there are also filters of numbers, because all pairs of these take "
            "too much memory."
        )
        return [], notes
    contract, progress, keys, alignment = side.contract, side.progress, side.keys, side.alignment
    named_keys = texts_named_by_helper(keys, terms, party=side.party, helper=contract.helper or "", progress=progress)
    for name, candidates in alignment.candidates.items():
        if not (candidates.numbers_NK != PAD).any():
            continue
        if side.is_label and (linked := len(np.unique(candidates.numbers_NK))) > MOST_LINKED:
            notes.append(
                f"What {name} could name of {side.party}'s keys was not measured: {linked:,} of its rows are linked, over "
                f"{MOST_LINKED:,}."
            )
        elif side.is_label:
            named_keys += texts_named_by_feature_party(
                keys, alignment.own_rows, candidates, terms, party=side.party, peer=name, progress=progress
            )
        else:
            named_keys += texts_named_by_label_party(
                keys, alignment.own_rows, candidates, terms, party=name, label_party=contract.label_party, progress=progress
            )
    return named_keys, notes


def summary_of(
    terms: SimilarityConfig, alignment: Alignment, *, party: str, before: Mapping[str, Floats] | None = None
) -> results.LinkageSummary:
    """Summarise an alignment's links, without any attack. ``before`` has the similarities before noise."""
    candidates = alignment.candidates
    notes = []
    if terms.helper_sees == "clear":
        notes.append("The helper saw the keys in the clear, as the contract says: there was nothing left to attack.")
    histograms = {}
    for name, found in candidates.items():
        if found.similarity_NK is not None:
            counts, edges = np.histogram(found.similarity_NK[found.numbers_NK != PAD], bins=BINS)
            earlier = (before or {}).get(name)
            typical, deviation, unit = _distance_in_words(terms, found)
            histograms[name] = results.SimilarityHistogram(
                edges=edges.tolist(),
                counts=counts.tolist(),
                before=[] if earlier is None or not len(earlier) else np.histogram(earlier, bins=edges)[0].tolist(),
                typical=typical,
                deviation=deviation,
                unit=unit,
            )
    return results.LinkageSummary(
        party=party,
        neighbors=terms.links,
        helper_sees=seen_by_helper(terms),
        guarantee=key_guarantee(terms),
        sigma={name: found.scale.sigma for name, found in candidates.items() if found.scale is not None},
        links={name: int((found.numbers_NK != PAD).sum()) for name, found in candidates.items()},
        improvement={name: estimated_improvement(found) for name, found in candidates.items() if found.similarity_NK is not None},
        similarities=histograms,
        notes=notes,
    )


def _distance_in_words(terms: SimilarityConfig, candidates: Candidates) -> tuple[float | None, float | None, str]:
    """Return the distance at similarity 0, how much the distance grows when similarity falls by 1, and the unit. Return none if
    dimensions have different weights.
    """
    if candidates.scale is None:
        return None, None, ""
    mean, deviation = -candidates.scale.mean, candidates.scale.deviation
    if terms.texts:
        return (mean, deviation, "differing bits") if not terms.numbers and terms.helper_sees != "clear" else (None, None, "")
    scales = scales_of(terms)
    bits_D = metric_of(terms, candidates.scale).bits_per_unit_D
    per_one_D = np.ones(len(terms.numbers)) if bits_D is None else bits_D
    if len(scales) > 1:
        return None, None, ""
    unit_D = scales[0].unit_D / per_one_D
    if unit_D.max() > 1.2 * unit_D.min():  # dimensions of different weights have no common distance
        return None, None, ""
    return mean * float(unit_D.mean()), deviation * float(unit_D.mean()), scales[0].unit


def _map(
    own_ND: Floats, located: Located, candidates: Candidates, terms: SimilarityConfig, *, names: tuple[str, str]
) -> results.LinkMap:
    """Draw own keys, the other side's keys at the places that the attack found, and the links between them."""
    weighted_D = np.array([d.scale / (d.weight if terms.helper_sees == "clear" else 1.0) for d in terms.numbers])
    at_label = candidates.own_rows is None  # the label party locates numbers, a feature party positions
    targets_T = located.targets_T[:ON_THE_MAP]
    place_TD = located.place_TD[:ON_THE_MAP] * weighted_D
    own_ND = own_ND * weighted_D
    pairs: list[tuple[int, int]] = []
    if at_label:
        position_L, place_L = np.nonzero(candidates.numbers_NK != PAD)
        number_L = candidates.numbers_NK[position_L, place_L]
        order_L = np.argsort(number_L, kind="stable")
        starts_T, ends_T = (np.searchsorted(number_L[order_L], targets_T, side=side) for side in ("left", "right"))
        rows_of_targets = [position_L[order_L][start:end] for start, end in zip(starts_T, ends_T, strict=True)]
    else:
        rows_of_targets = [candidates.numbers_NK[target] for target in targets_T]
    for place, rows in enumerate(rows_of_targets):
        pairs += [(int(row), place) for row in rows[rows != PAD][:LINKS_OF_ONE]]
    linked = list(dict.fromkeys(row for row, _ in pairs))
    unlinked_rows = np.linspace(0, len(own_ND) - 1, min(len(own_ND), OTHERS_ON_THE_MAP), dtype=np.int64).tolist()
    shown_rows = list(dict.fromkeys([*linked, *unlinked_rows]))
    index = {row: at for at, row in enumerate(shown_rows)}
    first, second = terms.numbers[0], terms.numbers[min(1, len(terms.numbers) - 1)]
    flat = len(terms.numbers) == 1
    axes = [f"{d.name}{f' ({d.unit})' if d.unit else ''}" for d in (first, second)]

    def points(place_PD: Floats) -> list[tuple[float, float]]:
        return [(float(place[0]), float(place[0 if flat else 1])) for place in place_PD]

    return results.LinkMap(
        party=names[0],
        peer=names[1],
        axes=axes,
        rest=[d.name for d in terms.numbers[2:]],
        own=points(own_ND[shown_rows]),
        located=points(place_TD),
        links=[(index[row], place) for row, place in pairs],
        attack="trilateration" if at_label else "cells",
        square=not flat and first.unit == second.unit,
    )


def _examples(keys: SimilarKeys, alignment: Alignment, *, party: str) -> list[results.LinkExample]:
    """Show own texts with their links. The label party sees numbers and similarities, a feature party its own rows that share
    links.
    """
    texts = [" · ".join(column[row] for column in keys.texts) for row in range(len(keys))]
    examples = []
    for name, found in alignment.candidates.items():
        linked_N = np.flatnonzero(found.numbers_NK[:, 0] != PAD)
        some = np.linspace(0, max(len(linked_N) - 1, 0), min(EXAMPLES, len(linked_N)), dtype=np.int64)
        for position in linked_N[some]:
            numbers = [int(number) for number in found.numbers_NK[position] if number != PAD][:LINKS_OF_ONE]
            if found.own_rows is not None:
                linked = [texts[found.own_rows[number]] for number in numbers]
                examples.append(results.LinkExample(party=party, peer="", own="", linked=linked))
            elif found.similarity_NK is not None:
                linked = [
                    f"row {number} of {name}, similarity {found.similarity_NK[position, place]:.2f}"
                    for place, number in enumerate(numbers)
                ]
                own = texts[alignment.rows_N[position]]
                examples.append(results.LinkExample(party=party, peer=name, own=own, linked=linked))
    return examples
