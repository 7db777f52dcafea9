"""Measure linking by similar keys: speed, size, exactness over three processes and TLS, and the true matches that text finds.

Places are generated over a city, in clusters around centres, with more of them in the middle. Shapes: N, M rows, D dimensions, K
neighbours.
"""

import csv
import os
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.alignment.distances import hamming, nearest_keys
from tallystick.alignment.encoding import encode_keys
from tallystick.alignment.federal import Packed, Pivots
from tallystick.alignment.nearest import Floats, nearest, nearest_by_ranks, nearest_of_all, rank_distance
from tallystick.alignment.psu_helper import KeyShare, key_of_shares
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity import link_feature_party, link_helper, link_label_party
from tallystick.alignment.terms import SimilarityConfig
from tallystick.demo.localhost import FEATURE, LABEL, PartyContext, run_parties
from tallystick.errors import DataError, TallystickError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message
from tallystick_experiments.resident import memory_mib
from tallystick_experiments.speed.alignment import HELPER, WITH_HELPER

Figures = dict[str, Any]

PARTY_TIMEOUT_S = 1800.0
CITY = ((115.6, 117.4), (39.4, 41.0))
"""Longitude and latitude of the generated city, which has the size of Beijing and its suburbs."""
PUBLISHED = 0.03
"""FEDERAL's epsilon and delta for the paper's house: filters have more than a million bits a dimension."""
COARSE = 0.5
"""The same for filters that are small enough to compare all rows bit by bit."""
TEXTS = {"dblp_acm": ("title",), "fodors_zagats": ("name",)}
"""Public pairs of tables with labelled matches, and the text that links them."""


def city_places(rows: int, *, seed: int) -> Floats:
    """Generate places of a city, in degrees."""
    shape, rng = np.random.default_rng(0), np.random.default_rng([seed, 1])
    (west, east), (south, north) = CITY
    middle, size = np.array([(west + east) / 2, (south + north) / 2]), np.array([east - west, north - south])
    centres = middle + shape.normal(0, 0.1, (300, 2)) * size
    places = centres[rng.integers(0, len(centres), rows)] + rng.normal(0, 0.01, (rows, 2)) * size
    clipped: Floats = np.clip(places, (west, south), (east, north))
    return clipped


def city_terms(neighbors: int, *, deviation: float = PUBLISHED) -> SimilarityConfig:
    """Return the paper's terms for house: windows of .01 degrees, epsilon = delta = .03."""
    dimensions = [{"name": name, "low": low, "high": high} for name, (low, high) in zip(("lon", "lat"), CITY, strict=True)]
    values = {"dimensions": dimensions, "neighbors": neighbors, "window": 0.01, "deviation": deviation, "failure": deviation}
    return SimilarityConfig.model_validate(values)


def linkage_speed(*, rows: int = 141_000, others: int = 28_000, neighbors: int = 100, sample: int = 1000) -> Figures:
    """Link generated places through a helper over TLS, time it, and check a sample of rows by brute force.

    The time starts when all three processes are connected and hold their keys, and ends at the last result. The same search in
    the clear is timed as well. The sample is checked three times: against all pairs, with the ranks of the run itself; and
    against true filters, bit by bit, once with a sample of the other rows and the run's own size of filters, and once with all of
    them and filters that are coarse enough.

    Raises DataError if a sampled row's links differ from those of brute force.
    """
    with tempfile.TemporaryDirectory(prefix="tallystick-bench-") as folder:
        job = {"rows": rows, "others": others, "neighbors": neighbors, "folder": folder}
        outcome = run_parties(Path(folder), linkage_party, WITH_HELPER, job, timeout_s=PARTY_TIMEOUT_S)
        checked = _check_run(Path(folder), job, sample=sample)
    terms = city_terms(neighbors)
    return {
        "rows": rows,
        "others": others,
        "neighbors": neighbors,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "filter_bits": sum(terms.pivots(dimension) for dimension in terms.dimensions),
        "seconds": outcome.seconds,
        "parties": outcome.results,
        "clear_cpu_seconds": clear_cpu_seconds(job),
        "sample": checked,
        "sample_by_filters": _check_filters(job, sample=sample, others=min(max(sample // 4, 1), others), deviation=PUBLISHED),
        "sample_by_coarse_filters": _check_filters(job, sample=sample, others=others, deviation=COARSE),
    }


def linkage_party(stage: PartyContext, job: Figures) -> Figures:
    """Run one party's process."""
    baseline, name = memory_mib("VmRSS"), stage.name
    terms, channels, folder = city_terms(job["neighbors"]), stage.channels, Path(job["folder"])
    keys = SimilarKeys(numbers_RD=city_places(job["rows" if name == LABEL else "others"], seed=int(name == LABEL)))
    stage.ready()
    started, cpu_started = time.perf_counter(), time.process_time()
    if name == HELPER:
        link_helper(channels[LABEL], [channels[FEATURE]], terms=terms, rng=SecureRandom())
    elif name == LABEL:
        overheard = _Overheard(channels[FEATURE])
        label = link_label_party(keys, [overheard], channels[HELPER], terms=terms, rng=SecureRandom())
    else:
        feature = link_feature_party(keys, channels[LABEL], channels[HELPER], name=FEATURE, terms=terms, rng=SecureRandom())
    figures = {
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - cpu_started,
        "peak_mib": memory_mib("VmHWM"),
        "peak_over_baseline_mib": memory_mib("VmHWM") - baseline,
        "bytes_sent": sum(channel.traffic.bytes_sent for channel in channels.values()),
    }
    if name == LABEL:
        np.savez(
            folder / "label.npz",
            rows_N=label.rows_N,
            numbers_NK=label.candidates[FEATURE].numbers_NK,
            secret=np.frombuffer(overheard.secret(), dtype=np.uint8),
        )
    elif name == FEATURE:
        np.savez(folder / "feature.npz", own_rows=feature.own_rows)
    return figures


class _Overheard:
    """Wrap a channel and note the halves of the secret, so that the check after the run can make the same filters."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self.peer, self.traffic = channel, channel.peer, channel.traffic
        self._shares: list[bytes] = []

    def send(self, message: Message) -> None:
        self._note(message)
        self._channel.send(message)

    def receive(self, kind: Any, *, within_s: float | None = None) -> Any:
        message = self._channel.receive(kind, within_s=within_s)
        self._note(message)
        return message

    def check(self) -> None:
        self._channel.check()

    def secret(self) -> bytes:
        return key_of_shares(*self._shares)

    def _note(self, message: Message) -> None:
        if isinstance(message, KeyShare):
            self._shares.append(message.share)


def _keys(job: Figures) -> tuple[SimilarKeys, SimilarKeys]:
    return (
        SimilarKeys(numbers_RD=city_places(job["rows"], seed=1)),
        SimilarKeys(numbers_RD=city_places(job["others"], seed=0)),
    )


def clear_cpu_seconds(job: Figures) -> float:
    """Measure the processor seconds of the same search for nearest places in one process, without any protection."""
    own, their_keys = (keys.numbers_RD for keys in _keys(job))
    started = time.process_time()
    nearest(own, their_keys, neighbors=job["neighbors"])
    return time.process_time() - started


def _check_run(folder: Path, job: Figures, *, sample: int) -> Figures:
    """Compare the links of sampled rows with all pairs, by the ranks under the run's own secret."""
    terms = city_terms(job["neighbors"])
    with np.load(folder / "label.npz") as label, np.load(folder / "feature.npz") as feature:
        positions = np.sort(np.random.default_rng(2).permutation(job["rows"])[:sample])
        rows, numbers_NK = label["rows_N"][positions], label["numbers_NK"][positions]
        secret, own_rows = label["secret"].tobytes(), feature["own_rows"]
    keys = _keys(job)
    own_ND2, other_MD2 = (
        encode_keys(SimilarKeys(numbers_RD=k.numbers_RD[some]), terms, secret).ranks_ND2
        for k, some in zip(keys, (rows, own_rows), strict=True)
    )
    expected = nearest_of_all(
        len(rows),
        len(own_rows),
        neighbors=job["neighbors"],
        block=lambda some: rank_distance(own_ND2[some, None], other_MD2[None], weights_D=np.ones(2)),
    )
    return _compared(numbers_NK, expected.numbers_NK)


def _check_filters(job: Figures, *, sample: int, others: int, deviation: float) -> Figures:
    """Compare the search by ranks, and the distances that it finds, with all pairs of true filters, bit by bit."""
    terms = city_terms(min(job["neighbors"], others), deviation=deviation)
    random = np.random.default_rng(3)
    some = [
        SimilarKeys(numbers_RD=keys.numbers_RD[np.sort(random.permutation(len(keys))[:count])])
        for keys, count in zip(_keys(job), (sample, others), strict=True)
    ]
    secret = bytes(32)
    neighbors = nearest_by_ranks(*(encode_keys(keys, terms, secret).ranks_ND2 for keys in some), neighbors=terms.neighbors)
    own, their_filters = (_filters(keys, terms, secret) for keys in some)
    expected = nearest_of_all(
        *(len(keys) for keys in some),
        neighbors=terms.neighbors,
        block=lambda part: sum((hamming(a_NW[part], b_MW) for a_NW, b_MW in zip(own, their_filters, strict=True)), np.zeros(())),
    )
    if not np.array_equal(neighbors.distance_NK, expected.distance_NK):
        raise DataError("distances by ranks are not those of true filters")
    bits = sum(terms.pivots(dimension) for dimension in terms.dimensions)
    return {"filter_bits": bits, "others": others, **_compared(neighbors.numbers_NK, expected.numbers_NK)}


def _filters(keys: SimilarKeys, terms: SimilarityConfig, secret: bytes) -> list[Packed]:
    """Make FEDERAL's filters by their definition, one bit per pivot in the window, without ranks."""
    filters = []
    for place, dimension in enumerate(terms.numbers):
        pivots, values_N = Pivots.of(terms, dimension, secret), keys.scaled(terms)[:, place]
        filters.append(np.stack([np.packbits(np.abs(pivots.pivot_P - value) <= pivots.window) for value in values_N]))
    return filters


def _compared(found_NK: Any, expected_NK: Any) -> Figures:
    different = int((found_NK != expected_NK).any(axis=1).sum())
    if different:
        raise DataError(f"{different} of {len(found_NK)} sampled rows have other links than brute force finds")
    return {"rows": len(found_NK), "different": different, "digest": sha256(expected_NK.tobytes()).hexdigest()[:16]}


RECALL_AT = (1, 5, 20)


def text_recall(folder: Path) -> list[Figures]:
    """Return the share of the labelled matches among the K most similar rows, by Bloom filters and by edit distance in the clear.

    Args:
        folder: the folder with dblp_acm and fodors_zagats, in the layout of public benchmarks of entity matching.
    """
    figures = []
    for name, columns in TEXTS.items():
        tables = [_texts(folder / name / f"table{side}.csv", columns) for side in "AB"]
        with (folder / name / "pairs.csv").open(encoding="utf-8", newline="") as file:
            matches = {(int(row["ltable_id"]), int(row["rtable_id"])) for row in csv.DictReader(file) if row["label"] == "1"}
        places = [{key: place for place, key in enumerate(ids)} for ids, _ in tables]
        pairs = np.array([(places[0][a], places[1][b]) for a, b in sorted(matches) if a in places[0] and b in places[1]])
        for sees in ("filters", "clear"):
            dimensions = [{"name": column, "kind": "text", "normalise": ["trim", "lower"]} for column in columns]
            values = {"dimensions": dimensions, "neighbors": max(RECALL_AT), "helper_sees": sees}
            terms = SimilarityConfig.model_validate(values)
            started = time.perf_counter()
            own, their_keys = (encode_keys(keys, terms, bytes(32)) for _, keys in tables)
            numbers_NK = nearest_keys(own, their_keys, terms).numbers_NK
            hit_PK = numbers_NK[pairs[:, 0]] == pairs[:, 1:]
            figures.append(
                {
                    "data": name,
                    "text": ", ".join(columns),
                    "method": "Bloom filters" if sees == "filters" else "edit distance, in the clear",
                    "rows": [own.rows, their_keys.rows],
                    "matches": len(pairs),
                    "recall": {str(k): float(hit_PK[:, :k].any(axis=1).mean()) for k in RECALL_AT},
                    "seconds": time.perf_counter() - started,
                }
            )
    return figures


def _texts(path: Path, columns: tuple[str, ...]) -> tuple[list[int], SimilarKeys]:
    if not path.is_file():
        raise DataError(f"{path}: is not there; give the folder that holds {' and '.join(TEXTS)}")
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if all(row[column].strip() for column in columns)]
    if not rows:
        raise TallystickError(f"{path}: has no row with a {', '.join(columns)}")
    texts = tuple(tuple(row[column].strip().lower() for row in rows) for column in columns)
    return [int(row["id"]) for row in rows], SimilarKeys(numbers_RD=np.empty((len(rows), 0)), texts=texts)
