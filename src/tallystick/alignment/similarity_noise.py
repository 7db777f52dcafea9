"""Turn distances into similarities, and add FedSim's noise to them.

A similarity is the negative distance, standardised over all links of the training's linkage, with noise if asked for, and scaled
to variance 1. New rows at prediction use the same scale. Both sides learn the exact mean and deviation of the distances, whatever
tau is. Several feature parties are linked separately, each under its own secret.

Shapes: N positions, K neighbours, L links of a position after selection.
"""

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy.special import erf, erfinv, ndtri

from tallystick.alignment.encoding import MAX_NUMBER
from tallystick.alignment.nearest import PAD, Floats, Neighbors
from tallystick.alignment.outcome import Rows, Similarities, SimilarityScale
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.terms import SimilarityConfig
from tallystick.errors import DataError

ROUNDING = 1e-9
"""How far rounding may lift a mean above the largest value that it averages."""
LEAST_DEVIATION = 1e-9
"""Of distances, in units of the least step between two of them, for fewer than 10^18 links that are not all equally far."""


def smallest_tau(deviation: float) -> float:
    """Return the tau of infinite noise: any tau must be above it.

    FedSim, theorem 2: if similarities have variance 1 and an attacker always guesses the mean, tau is the share of hits.

    Args:
        deviation: sigma_0, of the distances, in units of a hit (bits, or ``noise.resolution``).
    """
    return float(erf(1 / (2 * math.sqrt(2) * deviation)))


def sigma_of_tau(tau: float, deviation: float) -> float:
    """Return the deviation of the noise with which FedSim's greedy attacker hits a distance with probability tau.

    The noise is added to the negative distance, minus its mean and divided by its deviation, both over all links. The sum is then
    scaled back to variance 1 (``noisy_similarities``), which hides nothing from an attacker.

    FedSim, theorem 2, solved for sigma: 1 / sqrt(8 sigma_0^2 a^2 - 1) with a = erfinv(tau).

    No formal guarantee: tau bounds one guess of one distance. The choice of the K nearest has no noise at all, and the paper's
    theorem 1 is only a necessary condition for differential privacy. An attacker that averages the guesses of many distances to
    one row, or that counts near guesses as well as hits, does far better (``attacks/linkage``). A small tau protects less than it
    seems to.

    Raises DataError for a tau that no noise can reach, with the smallest one that can be reached.
    """
    if tau == 1:
        return 0.0
    product = 8 * np.square(deviation * float(erfinv(tau)))
    if product <= 1:
        raise DataError(
            f"alignment.similarity.noise.tau = {tau:g}: is not feasible for these distances, whose standard deviation is "
            f"{deviation:.4g}: it must be above {smallest_tau(deviation):.4g}"
        )
    return 1 / math.sqrt(product - 1)


def scale_of(mean: float, deviation: float, terms: SimilarityConfig) -> SimilarityScale:
    """Return the scale with the noise that the contract asks for. Raises DataError if all similarities would be equal."""
    if deviation == 0:
        raise DataError(
            "alignment: there are no links, or all have the same distance, so similarities are useless; check that the keys of "
            "both sides mean the same and vary, and with alignment.similarity.block that texts begin with the same characters"
        )
    tau = terms.noise.tau
    sigma = 0.0 if tau is None else sigma_of_tau(tau, deviation / terms.noise.resolution)
    return SimilarityScale(mean=mean, deviation=deviation, sigma=sigma)


def farthest(terms: SimilarityConfig) -> float:
    """Return the largest distance that two keys can have under a contract."""
    if terms.helper_sees != "clear":
        return sum(d.weight * (terms.text_bits if d.kind == "text" else terms.pivots(d)) for d in terms.dimensions)
    return 2 * math.sqrt(len(terms.numbers)) * MAX_NUMBER * bool(terms.numbers) + sum(d.weight for d in terms.texts)


def is_possible(mean: float, deviation: float, terms: SimilarityConfig) -> bool:
    """Tell whether the negative distances of some links can have this mean and deviation. If both are 0, there was nothing to
    fit.
    """
    if deviation == 0:
        return mean == 0
    far = farthest(terms)
    least = 1 / MAX_NUMBER if terms.helper_sees == "clear" else LEAST_DEVIATION * min(d.weight for d in terms.dimensions)
    return -far * (1 + ROUNDING) <= mean <= 0 and least <= deviation <= far


def fit(links: Neighbors) -> tuple[float, float]:
    """Return mean and standard deviation of the negative distances of all links. Both are 0 if there is nothing to fit."""
    distance_L = links.distance_NK[links.numbers_NK != PAD]
    if not len(distance_L) or distance_L.min() == distance_L.max():
        return 0.0, 0.0
    return -float(distance_L.mean()), float(distance_L.std())


def noisy_similarities(links: Neighbors, scale: SimilarityScale, *, keep: int, rng: SecureRandom) -> tuple[Rows, Similarities]:
    """Return the ``keep`` links of highest noisy similarity per position, and these similarities, the most similar first.

    Ties are broken by number.

    Mean and deviation are those of the training's linkage, even for links of new rows. So only the training's links have a mean
    of 0 and a variance of 1, over all K of them, before ``keep`` drops any. An absent link's similarity is 0.
    """
    there_NK = links.numbers_NK != PAD
    similarity_NK = (-np.where(there_NK, links.distance_NK, 0.0) - scale.mean) / scale.deviation
    if scale.sigma:
        similarity_NK += scale.sigma * gaussian(similarity_NK.shape, rng)
    released_NK: Similarities = (similarity_NK / math.sqrt(1 + scale.sigma**2)).astype(np.float32)
    released_NK[~there_NK] = -np.inf
    order_NL = np.lexsort((links.numbers_NK, -released_NK))[:, :keep]
    similarity_NL: Similarities = np.take_along_axis(released_NK, order_NL, axis=1)
    similarity_NL[np.isneginf(similarity_NL)] = 0.0
    return np.take_along_axis(links.numbers_NK, order_NL, axis=1), similarity_NL


def gaussian(shape: tuple[int, ...], rng: SecureRandom) -> Floats:
    """Draw standard normal noise by inversion of 52-bit words from a new key's stream: many draws, all unpredictable."""
    count = math.prod(shape)
    stream = Cipher(ChaCha20(rng.bytes(32), bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    words = np.frombuffer(stream, dtype="<u8") >> np.uint64(12)
    normals: Floats = ndtri((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)
    return normals
