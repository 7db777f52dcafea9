"""List FedSim's own numbers: Table 1, Figure 9 and Figure 5, the latter two from the authors' logs (means of five runs)."""

TABLE_1: dict[str, dict[str, tuple[float, float]]] = {
    "house": {
        "Solo": (58.31, 0.28),
        "Top1Sim": (58.54, 0.35),
        "FeatureSim": (66.39, 0.15),
        "AvgSim": (51.92, 0.65),
        "FedSim without weight gate": (42.82, 0.20),
        "FedSim without sort gate": (52.14, 0.58),
        "FedSim without CNN": (42.62, 0.20),
        "FedSim": (42.12, 0.23),
    },
    "hdb": {
        "Solo": (29.75, 0.15),
        "Top1Sim": (31.56, 0.21),
        "FeatureSim": (37.39, 0.29),
        "AvgSim": (34.12, 0.19),
        "FedSim without weight gate": (27.18, 0.08),
        "FedSim without sort gate": (36.35, 0.42),
        "FedSim without CNN": (27.76, 0.13),
        "FedSim": (27.13, 0.06),
    },
    "bike": {
        "Solo": (272.83, 1.50),
        "Top1Sim": (256.19, 1.39),
        "FeatureSim": (273.29, 0.37),
        "AvgSim": (239.85, 0.40),
        "FedSim without weight gate": (236.79, 0.29),
        "FedSim without sort gate": (238.30, 0.81),
        "FedSim without CNN": (235.97, 0.42),
        "FedSim": (235.67, 0.27),
    },
}
"""RMSE and its standard deviation over five runs on one split; house has 141,050 rows, hdb 92,065, bike 200,000."""

TABLE_2: dict[str, dict[str, float]] = {
    "house": {"Secondary": 150.27},
    "hdb": {"Secondary": 134.82},
    "bike": {"Secondary": 265.79},
}
"""RMSE of the feature party's most similar row alone; the label party's columns alone are Table 1's Solo."""

TABLE_6: dict[str, float] = {
    "1+2+3": 0.9475,
    "1+2": 0.9470,
    "1+3": 0.9481,
    "2+3": 0.9456,
    "1": 0.9469,
    "2": 0.9114,
    "3": 0.9457,
}
"""R-squared of FedSim on house, by the feature parties that take part. Solo has .8989."""

TABLE_10: dict[str, dict[int, float]] = {
    "Solo": {30: 0.6076},
    "Top1Sim": {30: 0.9215},
    "FedSim": {30: 0.9280, 50: 0.8779},
    "Combine": {30: 0.9470},
}
"""Accuracy if the keys show only which rows are one thing, by K."""

TABLE_7: dict[str, tuple[float, float]] = {
    "house": (3.48, 145.20),
    "taxi": (12.95, 594.27),
    "hdb": (0.98, 258.23),
    "game": (3.62, 41.38),
    "company": (13.20, 19.87),
}
"""Minutes of linkage by set: with keys in the clear, and by Bloom filters."""

TABLE_8: dict[str, dict[str, str]] = {
    "house": {"Top1Sim": "below 1", "FeatureSim": "15", "AvgSim": "6", "FedSim": "9"},
    "hdb": {"Top1Sim": "below 1", "FeatureSim": "5", "AvgSim": "4", "FedSim": "6"},
    "bike": {"Top1Sim": "1", "FeatureSim": "51", "AvgSim": "35", "FedSim": "38"},
}
"""Seconds of an epoch on four A100, by set and method. The paper also has game and company."""

TABLE_9: dict[str, dict[str, int]] = {
    "Exact": {"game": 63_301, "company": 85_401},
    "FeatureSim": {"house": 76_201, "taxi": 116_801, "hdb": 76_201, "game": 32_801, "company": 45_201},
    "AvgSim": {"house": 76_001, "taxi": 116_701, "hdb": 136_601, "game": 63_301, "company": 75_701},
    "Top1Sim": {"house": 76_001, "taxi": 11_971, "hdb": 76_001, "game": 63_301, "company": 170_601},
    "FedSim": {"house": 3_469_806, "taxi": 1_846_490, "hdb": 1_869_806, "game": 1_826_506, "company": 494_474},
}
"""Numbers of weights by method and set. The paper elsewhere calls taxi bike."""

TABLE_11 = {"house": 50.03, "hdb": 28.29, "bike": 238.81}
"""FedSim's RMSE with the distances of filters. With those of keys it is in Table 1."""

NEIGHBORS = {"house": 100, "hdb": 50, "bike": 50}
"""K."""

DELTA = {"house": 34.05, "hdb": 20.69, "bike": 14.26}
"""Table 1's estimate of FedSim's gain over Top1Sim, without training."""

FIGURE_9: dict[str, dict[int, float]] = {
    "house": {5: 48.04, 10: 46.74, 20: 44.36, 40: 43.09, 60: 42.64, 80: 42.25, 100: 42.12},
    "hdb": {3: 29.38, 5: 28.65, 10: 27.89, 20: 27.43, 30: 27.18, 40: 27.13, 50: 27.17},
}
"""FedSim's RMSE by K."""

FIGURE_6: dict[str, dict[str, float]] = {
    "FedSim": {
        "tau 1": 50.0,
        "tau 0.1": 49.7,
        "tau 0.01": 49.3,
        "tau 0.001": 49.9,
        "tau 0.0005": 49.8,
        "tau 0.0001": 51.8,
        "tau 5e-05": 54.3,
    },
    "Top1Sim": {
        "tau 1": 60.2,
        "tau 0.1": 60.0,
        "tau 0.01": 59.6,
        "tau 0.001": 60.6,
        "tau 0.0005": 61.4,
        "tau 0.0001": 66.1,
        "tau 5e-05": 69.0,
    },
}
"""RMSE on house by noise on the similarities of filters."""

KEY_NOISE = (0.0, 0.1, 0.2)  # noise levels of figure 5
FIGURE_5: dict[str, dict[str, tuple[float, float, float]]] = {
    "frogs": {"FedSim averaging": (0.955, 0.956, 0.907), "Top1Sim": (0.918, 0.900, 0.839), "Combine": (0.982, 0.984, 0.984)},
    "synthetic": {"FedSim averaging": (0.915, 0.891, 0.772), "Top1Sim": (0.897, 0.876, 0.743)},
}
"""Accuracy if the keys have noise of deviation 0, 0.1 and 0.2."""

METRIC = {
    "house": "rmse",
    "hdb": "rmse",
    "bike": "rmse",
    "frogs": "accuracy",
    "synthetic": "accuracy",
    "synthetic-random": "accuracy",
}
"""The metric of each set."""
