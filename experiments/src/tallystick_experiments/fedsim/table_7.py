"""Measure the time of linking at the sizes of the paper's five sets (Table 7): by keys in the clear, and as a helper sees them.

Keys are generated: places of a city, trips between two of them, names of a few words. Both ways are timed in one process, from
keys to links, without the network. ``bench linkage`` runs three processes over TLS.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tallystick.alignment.distances import nearest_keys
from tallystick.alignment.encoding import encode_keys
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick_experiments.fedsim import paper
from tallystick_experiments.fedsim.linkage import city_places
from tallystick_experiments.fedsim.located import place_terms
from tallystick_experiments.stats import Row

SYLLABLES = ("ka", "lo", "mi", "ra", "ten", "sor", "vel", "dan", "pri", "qu", "es", "ton", "gar", "bel", "ix", "um")
WORDS = 4000  # number of words that make up names


@dataclass(frozen=True, kw_only=True)
class LinkedSet:
    """Give the size of a set's two tables, and of its keys.

    Args:
        rows, others: rows of the label party and of the feature party.
        places: number of places in a key; 0 if it is a name.
        share: the share of each side's rows that is linked; if all pairs are compared, the time for all follows from this share.
    """

    rows: int
    others: int
    neighbors: int
    places: int = 0
    share: float = 1.0


SETS = {
    "house": LinkedSet(rows=141_050, others=27_827, neighbors=100, places=1),
    "taxi": LinkedSet(rows=200_000, others=100_000, neighbors=50, places=2),
    "hdb": LinkedSet(rows=92_095, others=165, neighbors=50, places=1),
    "game": LinkedSet(rows=26_987, others=439_999, neighbors=50, share=0.05),
    "company": LinkedSet(rows=77_225, others=220_583, neighbors=50, share=0.05),
}
WAYS = ("clear", "private")


def table_7() -> list[Row]:
    """Return a row for each set: processor seconds in both ways, and the paper's minutes."""
    rows = []
    for name, linked in SETS.items():
        keys = [
            generated_keys(linked, round(linked.share * count), seed=seed)
            for seed, count in enumerate((linked.rows, linked.others))
        ]
        seconds = {way: linking_seconds(keys, linked, way) / linked.share**2 for way in WAYS}
        minutes = dict(zip(WAYS, paper.TABLE_7[name], strict=True))
        sizes = {"rows": linked.rows, "others": linked.others, "neighbors": linked.neighbors, "share": linked.share}
        rows.append({"set": name, **sizes, "paper": minutes, "seconds": seconds})
    return rows


def generated_keys(linked: LinkedSet, rows: int, *, seed: int) -> SimilarKeys:
    """Generate one side's keys."""
    if linked.places:
        ends = [city_places(rows, seed=2 * seed + end) for end in range(linked.places)]
        return SimilarKeys(numbers_RD=np.concatenate(ends, axis=1))
    words = ["".join(np.random.default_rng(word).choice(SYLLABLES, 3)) for word in range(WORDS)]
    rng = np.random.default_rng([seed, 2])
    numbers_R3 = np.minimum(rng.zipf(1.3, (rows, 3)), WORDS) - 1
    return SimilarKeys(numbers_RD=np.empty((rows, 0)), texts=(tuple(" ".join(words[n] for n in row) for row in numbers_R3),))


def linking_seconds(keys: list[SimilarKeys], linked: LinkedSet, way: str) -> float:
    """Measure the processor seconds from keys to links."""
    secret, changes = bytes(32), {"neighbors": linked.neighbors, "helper_sees": "clear"}
    if way == "private":
        changes["helper_sees"] = "ranks" if linked.places else "filters"
    terms = _terms(keys, linked, changes)
    started = time.process_time()
    own, other_keys = (encode_keys(each, terms, secret) for each in keys)
    nearest_keys(own, other_keys, terms)
    return time.process_time() - started


def _terms(keys: list[SimilarKeys], linked: LinkedSet, changes: dict[str, Any]) -> SimilarityConfig:
    if linked.places:
        return place_terms(*(each.numbers_RD for each in keys), **changes)
    return SimilarityConfig.model_validate({"dimensions": [{"name": "name", "kind": "text"}], **changes})
