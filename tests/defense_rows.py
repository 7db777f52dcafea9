"""The tests' row per defence: its keys, as a contract gives them, with several rows if they choose between modes."""

from typing import Any

DEFENSE_ROWS: dict[str, list[dict[str, Any]]] = {
    "marvell": [{"power": 4.0}, {"max_sum_kl": 0.16}],
    "isotropic": [{"power": 1.5}],
    "mixpro": [{}],
    "gaussian": [{"epsilon": 1, "delta": 1e-6, "clip": 1}],
    "gradient-compression": [{"keep": 0.1}],
    "ladsg": [{"soft": 0.5}],
    "label-dp": [{"epsilon": 1}],
    "label-dp-prior": [{"epsilon": 2}],
    "gaussian-labels": [{"epsilon": 1, "delta": 1e-6}],
    "distance-correlation": [{"weight": 1e-2, "warm_up": 1.0}],
    "gaussian-embeddings": [{"epsilon": 10, "delta": 1e-6, "clip": 1}],
    "quantized-embeddings": [{"levels": 5}],
    "feature-distance-correlation": [{"weight": 0.1}],
    "reconstruction-penalty": [{"weight": 0.1}],
}
