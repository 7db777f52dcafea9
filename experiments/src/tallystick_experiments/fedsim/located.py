"""Measure how near attackers come to keys that are linked by similarity, with noise from tau and with noise on keys.

No party can make such an audit, because it lacks the other's truth. This has both tables, and measures each attacker as it is.

Shapes: N rows of the label party, M rows of the feature party, D dimensions of a key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.alignment.distances import nearest_keys
from tallystick.alignment.encoding import encode_keys
from tallystick.alignment.key_noise import key_guarantee, noisy_keys
from tallystick.alignment.nearest import Floats
from tallystick.alignment.outcome import Rows, Similarities, SimilarityScale
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity_noise import fit, noisy_similarities, scale_of, smallest_tau
from tallystick.alignment.terms import SimilarityConfig
from tallystick.attacks.findings import LocatedKeys
from tallystick.attacks.linkage.evaluate import evaluate_linkage
from tallystick.attacks.linkage.view import FeaturePartyView, LabelPartyView
from tallystick.audit import located_keys as audit
from tallystick.audit.located_keys import metric_of, places_of, units_of
from tallystick.errors import DataError
from tallystick_experiments.catalogue.pairs import Pair, read_hdb
from tallystick_experiments.fedsim.runs import LinkedPair, SplitKind, linked_pair, split_rows

METRES_A_DEGREE = 111_195.0
"""Metres of a degree of latitude; of longitude after multiplication by the cosine of the latitude."""
TAUS = (1.0, 0.1, 0.01, 0.001)
FINE_TAUS = (*TAUS, 0.0005, 0.0001, 0.00005)
"""The values of the paper's Figure 6."""
WINDOW = 0.01
"""Degrees that FEDERAL's filters reach to either side of a place: the paper's for house and hdb."""
WINDOWS = {"bike": 0.02}
"""The same for a set with another value."""
WIDE_FILTERS, WIDE_WINDOW = "tau 1, window 0.2", 0.2
"""Filters that reach further than the paper's. Places that differ by more than twice a window are equally far."""
PLACE_NAMES = ("lon", "lat", "end lon", "end lat")
KEY_NOISE_METRES = (30.0, 100.0, 300.0, 1000.0)
"""Mean displacements of planar Laplace noise, 2 radius / epsilon."""


@dataclass(frozen=True, kw_only=True)
class LinkedPlaces:
    """Hold a linkage of two tables, as both parties have it."""

    numbers_NK: Rows  # the most similar first
    similarity_NK: Similarities  # noisy; only the label party has them
    own_rows: Rows  # the feature party's row of each number, which only it knows
    scale: SimilarityScale
    sent: tuple[SimilarKeys, SimilarKeys]  # with noise if the contract requires it: each side knows its own
    noise: str  # a description


def place_terms(own_ND: Floats, their_MD: Floats, *, neighbors: int, **changes: Any) -> SimilarityConfig:
    """Return the contract's terms for one or two places in degrees of longitude and latitude, over a range around both tables."""
    both = np.concatenate((own_ND, their_MD))
    low_D, high_D = np.floor(both.min(axis=0) * 10) / 10 - 0.1, np.ceil(both.max(axis=0) * 10) / 10 + 0.1
    metres_D = METRES_A_DEGREE * np.tile([np.cos(np.deg2rad(both[:, 1].mean())), 1.0], both.shape[1] // 2)
    dimensions = [
        {"name": name, "unit": "degree", "low": float(low), "high": float(high), "metres": float(metres)}
        for name, low, high, metres in zip(PLACE_NAMES[: len(low_D)], low_D, high_D, metres_D, strict=True)
    ]
    return SimilarityConfig.model_validate({"dimensions": dimensions, "neighbors": neighbors, **changes})


def link(own_ND: Floats, their_MD: Floats, terms: SimilarityConfig, *, rng: SecureRandom) -> LinkedPlaces:
    """Link two tables as the three parties would, without a network between them."""
    own, their_keys = (noisy_keys(SimilarKeys(numbers_RD=keys), terms, secret=rng.bytes(32)) for keys in (own_ND, their_MD))
    secret, number_M = rng.bytes(32), rng.permutation(len(their_keys))
    by_number = np.argsort(number_M)
    links = nearest_keys(encode_keys(own, terms, secret), encode_keys(their_keys, terms, secret).gather(by_number), terms)
    scale = scale_of(*fit(links), terms)
    numbers_NK, similarity_NK = noisy_similarities(links, scale, keep=terms.links, rng=rng)
    noise_text = key_guarantee(terms) if terms.noise.keys != "none" else f"noise of {scale.sigma:.3g} deviations on similarities"
    return LinkedPlaces(
        numbers_NK=numbers_NK,
        similarity_NK=similarity_NK,
        own_rows=by_number,
        scale=scale,
        sent=(own, their_keys),
        noise=noise_text,
    )


def located(
    own_ND: Floats, their_MD: Floats, linked: LinkedPlaces, terms: SimilarityConfig, *, seed: int = 0
) -> dict[str, LocatedKeys]:
    """Locate true keys in metres, as the label party (greedy, trilateration) and the feature party (cells) do."""
    places_ND, places_MD = (places_of(SimilarKeys(numbers_RD=keys), terms) for keys in (own_ND, their_MD))
    sent_ND, sent_MD = (places_of(keys, terms) for keys in linked.sent)
    metric, rows, (units_D, _) = metric_of(terms, linked.scale), linked.own_rows, units_of(terms)
    similarity_NK = linked.similarity_NK.astype(np.float64)
    label = LabelPartyView(metric=metric, own_ND=sent_ND, numbers_NK=linked.numbers_NK, similarity_NK=similarity_NK)
    feature = FeaturePartyView(metric=metric, own_MD=sent_MD[rows], numbers_NK=linked.numbers_NK)
    of_label_party = evaluate_linkage(label, places_MD[rows], units_D, seed=seed)
    return of_label_party | evaluate_linkage(feature, places_ND, units_D, seed=seed)


def noise_settings(taus: Sequence[float] = TAUS, metres: Sequence[float] = KEY_NOISE_METRES) -> dict[str, dict[str, Any]]:
    """Return the contract's ``noise`` for every setting of the frontier, by the name that is shown."""
    settings: dict[str, dict[str, Any]] = {f"tau {tau:g}": {"tau": tau} for tau in taus}
    for move in metres:  # epsilon 1 within half the mean displacement
        radius = move / 2 / METRES_A_DEGREE
        settings[f"keys moved by {move:g} m"] = {"keys": "planar-laplace", "epsilon": 1.0, "radius": radius}
    return settings


def located_frontier(
    own_ND: Floats,
    their_MD: Floats,
    *,
    neighbors: int,
    rng: SecureRandom,
    **changes: Any,
) -> dict[str, dict[str, Any]]:
    """Locate with every setting of noise, and return each attack's figures and the noise. An infeasible setting has a problem."""
    rows: dict[str, dict[str, Any]] = {}
    for name, noise in noise_settings().items():
        terms = place_terms(own_ND, their_MD, neighbors=neighbors, noise=noise, **changes)
        try:
            linked = link(own_ND, their_MD, terms, rng=rng)
        except DataError as error:
            rows[name] = {"problem": str(error)}
            continue
        attacks = {attack: located_figures(error) for attack, error in located(own_ND, their_MD, linked, terms).items()}
        rows[name] = {
            "noise": linked.noise,
            "sigma": linked.scale.sigma,
            "deviation": linked.scale.deviation,
            "smallest_tau": smallest_tau(linked.scale.deviation),
            "attacks": attacks,
        }
    return rows


def link_places(
    pair: Pair, noise: str, *, neighbors: int, seed: int, kind: SplitKind = "varied", locates: bool = True
) -> LinkedPair:
    """Split a set whose keys are longitudes and latitudes, link it as a job does, and locate its keys as attackers would.

    Args:
        pair: the set.
        noise: one of ``noise_settings``, or the filters that reach further.
        neighbors: K.
        seed: the seed of the split, the secret and the noise; a job draws the last two from the operating system.
        kind: the kind of split.
        locates: whether attackers locate keys; each key must then be one place.
    """
    own_ND, their_MD = pair.own_key_NP, pair.their_key_MP
    window, settings = WINDOWS.get(pair.name, WINDOW), noise_settings(FINE_TAUS)
    if noise == WIDE_FILTERS:
        window, settings = WIDE_WINDOW, {noise: settings["tau 1"]}
    terms = place_terms(own_ND, their_MD, neighbors=neighbors, noise=settings[noise], window=window)
    linked = link(own_ND, their_MD, terms, rng=SecureRandom(source=np.random.default_rng([seed, 9]).bytes))
    split = split_rows(len(own_ND), seed=seed, kind=kind)
    pairs_linked = linked_pair(pair, split, linked.own_rows[linked.numbers_NK], linked.similarity_NK)
    attacks = located(own_ND, their_MD, linked, terms, seed=seed) if locates else {}
    return replace(pairs_linked, located={attack: error.median for attack, error in attacks.items()})


def located_from_own_keys(keys_ND: Floats, terms: SimilarityConfig) -> dict[str, LocatedKeys]:
    """Locate one side's keys as the helper does, by ranks or by shuffled filters."""
    keys = SimilarKeys(numbers_RD=keys_ND)
    return {found.name: found for found in audit.located_by_helper(keys, keys, terms, party="party", helper="helper")}


def located_figures(found: LocatedKeys) -> dict[str, Any]:
    """Return the part of a finding that a row keeps."""
    return {name: getattr(found, name) for name in ("placed", "median", "low", "high", "tenth", "chance", "bounds")}


def measure_noise_settings(folder: Path, *, neighbors: int, window: float = WINDOW) -> dict[str, Any]:
    """Locate on FedSim's hdb geography with every setting of noise, and say what the helper locates of the flats' places."""
    pair = read_hdb(folder)
    own_ND, their_MD = pair.own_key_NP, pair.their_key_MP
    helper: dict[str, Any] = {}
    for sees, coarse in (("ranks", {}), ("filters", {"deviation": 0.1, "failure": 0.1})):
        terms = place_terms(own_ND, their_MD, neighbors=neighbors, helper_sees=sees, window=window, **coarse)
        helper |= {name: located_figures(error) for name, error in located_from_own_keys(own_ND, terms).items()}
    rows = located_frontier(own_ND, their_MD, neighbors=neighbors, rng=SecureRandom(), window=window)
    return {"rows": [len(own_ND), len(their_MD)], "neighbors": neighbors, "unit": "m", "helper": helper, "noise": rows}
