"""Measure how many keys each party of a linkage by text could name.

The attacker's list of texts holds exactly this party's own keys, which is the best list that it could have. As in
``located_keys.py``, each party plays the attacker, and uses what it can find out itself about the other side.

Shapes: N positions, M numbers, K links, S listed keys, T targets.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from msgspec.structs import replace

from tallystick.alignment.distances import block_distance
from tallystick.alignment.encoding import encode_keys
from tallystick.alignment.federal import Packed, grams
from tallystick.alignment.nearest import PAD, Floats, Integers
from tallystick.alignment.outcome import Candidates
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.attacks.findings import NamedKeys
from tallystick.attacks.linkage.texts import (
    FeaturePartyTexts,
    HelperTexts,
    LabelPartyTexts,
    TextView,
    evaluate_texts,
)
from tallystick.audit.located_keys import AUDIT_SECRET, metric_of
from tallystick.network.channel import Progress

MOST_KEYS = 1500
"""Greatest number of listed keys, and of attacked keys. All pairs are compared."""
MOST_LINKED = 10_000
"""Greatest number of rows that replace a feature party's. Each is compared with all listed keys."""


def texts_named_by_helper(
    keys: SimilarKeys, terms: SimilarityConfig, *, party: str, helper: str, progress: Progress
) -> list[NamedKeys]:
    """Measure how many keys a helper could name by this party's filters, if it knows no key and does not see texts in the
    clear.
    """
    if terms.helper_sees == "clear" or not terms.texts:
        return []
    rng = np.random.default_rng([0, 6])
    listed = _distinct(keys, rng)
    texts_only = terms.model_copy(update={"dimensions": terms.texts, "block": 0})
    without_numbers = _rows(keys, listed).with_numbers(np.empty((len(listed), 0)))
    filters = encode_keys(without_numbers, texts_only, AUDIT_SECRET).filters
    likeness_TT = np.zeros((len(listed), len(listed)))
    likeness_SS = np.zeros_like(likeness_TT)
    for place, dimension in enumerate(terms.texts):
        likeness_TT += grams_behind(filters[dimension.name], bits=terms.text_bits, hashes=terms.hashes)
        texts = [keys.texts[place][row] for row in listed]
        vocabulary: dict[str, int] = {}
        of_text = [[vocabulary.setdefault(gram, len(vocabulary)) for gram in sorted(grams(text, terms.gram))] for text in texts]
        has_SG = np.zeros((len(texts), len(vocabulary)), dtype=np.float32)
        for place, some in enumerate(of_text):
            has_SG[place, some] = 1
        likeness_SS += np.asarray(has_SG @ has_SG.T, dtype=np.float64)
    order_S = rng.permutation(len(listed))  # shuffle the list, so that its order says nothing about the filters' order
    place_T = np.argsort(order_S)
    view = HelperTexts(likeness_SS=likeness_SS[np.ix_(order_S, order_S)], likeness_TT=likeness_TT)
    return _measured(view, place_T, attacker=helper, located=party, progress=progress)


def texts_named_by_label_party(
    keys: SimilarKeys,
    rows_M: Integers,
    candidates: Candidates,
    terms: SimilarityConfig,
    *,
    party: str,
    label_party: str,
    progress: Progress,
) -> list[NamedKeys]:
    """Name a feature party's keys as the label party could from similarities. The feature party measures this."""
    rng = np.random.default_rng([0, 7])
    linked = np.flatnonzero(candidates.numbers_NK[:, 0] != PAD)
    sample_T = np.sort(rng.permutation(linked)[:MOST_KEYS])
    numbers_NK = candidates.numbers_NK[sample_T]
    targets_T, number_NK = _renumbered(numbers_NK)
    some = rng.integers(0, (numbers_NK != PAD).sum(axis=1))  # this side does not know which link is spelt most like the row
    played = rows_M[numbers_NK[np.arange(len(sample_T)), some]]
    truth = rows_M[targets_T]
    listed = _distinct(keys, rng, first=truth)
    distance_NT = _apart(keys, played, truth, terms)
    distance_NK = np.take_along_axis(distance_NT, np.maximum(number_NK, 0), axis=1)
    metric = metric_of(terms, candidates.scale)
    view = LabelPartyTexts(
        targets=len(targets_T),
        distance_NS=_apart(keys, played, listed, terms),
        numbers_NK=number_NK,
        similarity_NK=metric.similarity(distance_NK, np.asarray(rng.standard_normal(distance_NK.shape))),
        metric=metric,
    )
    stand_in = (
        f"{label_party} has its own rows' texts, which {party} does not know: {len(sample_T):,} rows of {label_party} were "
        "spelt like one of the rows that they are linked to"
    )
    return _measured(
        view, _place_of(keys, listed, truth), attacker=label_party, located=party, progress=progress, stand_in=stand_in
    )


def texts_named_by_feature_party(
    keys: SimilarKeys,
    rows_N: Integers,
    candidates: Candidates,
    terms: SimilarityConfig,
    *,
    party: str,
    peer: str,
    progress: Progress,
) -> list[NamedKeys]:
    """Name the label party's keys as a feature party could from its links. The label party measures this.

    With more than ``MOST_LINKED`` numbers it is not measured. A sample of them would not do, because the nearest text could be
    missing.
    """
    rng = np.random.default_rng([0, 8])
    linked = np.flatnonzero(candidates.numbers_NK[:, 0] != PAD)
    sample_T = np.sort(rng.permutation(linked)[: MOST_KEYS // 5])
    numbers_M, number_NK = _renumbered(candidates.numbers_NK)
    position_L, place_L = np.nonzero(number_NK != PAD)
    order_L = np.lexsort((place_L, number_NK[position_L, place_L]))  # the most similar first
    first_M = np.unique(number_NK[position_L, place_L][order_L], return_index=True)[1]
    played = rows_N[position_L[order_L[first_M]]]
    truth = rows_N[sample_T]
    listed = _distinct(keys, rng, first=truth)
    view = FeaturePartyTexts(distance_NS=_apart(keys, played, listed, terms), numbers_TK=number_NK[sample_T])
    stand_in = (
        f"{peer} has its own rows' texts, which {party} does not know: {len(numbers_M):,} rows of {peer} were spelt like the "
        f"row of {party} that is most similar to each"
    )
    return _measured(view, _place_of(keys, listed, truth), attacker=peer, located=party, progress=progress, stand_in=stand_in)


def _measured(
    view: TextView, truth_T: Integers, *, attacker: str, located: str, progress: Progress, stand_in: str = ""
) -> list[NamedKeys]:
    moved: Callable[[int, int], None] = partial(progress, "attack on links: texts")
    return [
        replace(found, attacker=attacker, located=located, note=stand_in)
        for found in evaluate_texts(view, truth_T, progress=moved).values()
    ]


def _apart(keys: SimilarKeys, own: Integers, others: Integers, terms: SimilarityConfig) -> Floats:
    """Measure distances as the helper does, under the audit's secret. A real attacker knows the run's secret."""
    whole = terms.model_copy(update={"block": 0})
    own_keys, other_keys = (encode_keys(_rows(keys, rows), whole, AUDIT_SECRET) for rows in (own, others))
    return block_distance(own_keys, other_keys, whole, slice(0, len(own)))


def _rows(keys: SimilarKeys, rows: Integers) -> SimilarKeys:
    return SimilarKeys(numbers_RD=keys.numbers_RD[rows], texts=tuple(tuple(column[row] for row in rows) for column in keys.texts))


def _distinct(keys: SimilarKeys, rng: np.random.Generator, *, first: Integers | None = None) -> Integers:
    """List rows of distinct texts, in random order: those of ``first``, then others, up to the limit."""
    rows = rng.permutation(len(keys))
    rows = rows if first is None else np.concatenate((first, rows))
    by_text = {_text(keys, int(row)): int(row) for row in rows[::-1]}
    distinct_rows = list({_text(keys, int(row)): by_text[_text(keys, int(row))] for row in rows}.values())
    most = MOST_KEYS if first is None else max(MOST_KEYS, len(set(first.tolist())))
    return rng.permutation(np.array(distinct_rows[:most], dtype=np.int64))


def _text(keys: SimilarKeys, row: int) -> tuple[str, ...]:
    return tuple(column[row] for column in keys.texts)


def _place_of(keys: SimilarKeys, listed: Integers, rows: Integers) -> Integers:
    """Return the place of each row's text on the list."""
    place = {_text(keys, int(row)): at for at, row in enumerate(listed)}
    return np.array([place.get(_text(keys, int(row)), -1) for row in rows], dtype=np.int64)


def _renumbered(numbers_NK: Integers) -> tuple[Integers, Integers]:
    """Return the numbers that occur, and the links with each number replaced by its place among them."""
    numbers_M = np.unique(numbers_NK[numbers_NK != PAD])
    return numbers_M, np.where(numbers_NK == PAD, PAD, np.searchsorted(numbers_M, numbers_NK))


def grams_behind(packed_TW: Packed, *, bits: int, hashes: int) -> Floats:
    """Estimate how many q-grams two filters share, from the bits that each sets and that both set."""
    bits_TP = np.unpackbits(packed_TW, axis=1).astype(np.float32)
    both_TT, set_T = np.asarray(bits_TP @ bits_TP.T, dtype=np.float64), bits_TP.sum(axis=1, dtype=np.float64)

    def grams_of(count: Floats) -> Floats:
        return np.asarray(-bits / hashes * np.log1p(-np.minimum(count, bits - 1) / bits))

    size_T = grams_of(set_T)
    return size_T[:, None] + size_T - grams_of(set_T[:, None] + set_T - both_TT)
