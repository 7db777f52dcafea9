"""FedSim's own numbers: Table 1, Figure 9 and Figure 5, the latter two as the authors' logs have them (means of five runs)."""

TABLE_1: dict[str, dict[str, tuple[float, float]]] = {
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
"""RMSE and its standard deviation over five runs on one split, K = 50; hdb is of 92,065 flats, bike of 200,000 taxi trips."""

TABLE_2: dict[str, dict[str, float]] = {"hdb": {"Secondary": 134.82}, "bike": {"Secondary": 265.79}}
"""RMSE of the feature party's most similar row alone; the label party's columns alone are Table 1's Solo."""

TABLE_10: dict[str, dict[int, float]] = {
    "Solo": {30: 0.6076},
    "Top1Sim": {30: 0.9215},
    "FedSim": {30: 0.9280, 50: 0.8779},
    "Combine": {30: 0.9470},
}
"""Accuracy where the keys say nothing but which rows are one thing, by K."""

TABLE_8: dict[str, dict[str, str]] = {
    "hdb": {"Top1Sim": "below 1", "FeatureSim": "5", "AvgSim": "4", "FedSim": "6"},
    "bike": {"Top1Sim": "1", "FeatureSim": "51", "AvgSim": "35", "FedSim": "38"},
}
"""Seconds of an epoch on four A100, K = 50, by set and method; house, game and company stand there too."""

TABLE_9: dict[str, dict[str, int]] = {
    "Exact": {"game": 63_301, "company": 85_401},
    "FeatureSim": {"house": 76_201, "taxi": 116_801, "hdb": 76_201, "game": 32_801, "company": 45_201},
    "AvgSim": {"house": 76_001, "taxi": 116_701, "hdb": 136_601, "game": 63_301, "company": 75_701},
    "Top1Sim": {"house": 76_001, "taxi": 11_971, "hdb": 76_001, "game": 63_301, "company": 170_601},
    "FedSim": {"house": 3_469_806, "taxi": 1_846_490, "hdb": 1_869_806, "game": 1_826_506, "company": 494_474},
}
"""Numbers of weights by method and set; taxi is what the text elsewhere calls bike."""

DELTA, DELTA_NEIGHBORS = {"hdb": 20.69, "bike": 14.26}, 50
"""Table 1's estimate of what FedSim brings over Top1Sim, without training, and K."""

FIGURE_9: dict[str, dict[int, float]] = {
    "hdb": {3: 29.38, 5: 28.65, 10: 27.89, 20: 27.43, 30: 27.18, 40: 27.13, 50: 27.17},
}
"""FedSim's RMSE by K."""

KEY_NOISE = (0.0, 0.1, 0.2)  # of figure 5
FIGURE_5: dict[str, dict[str, tuple[float, float, float]]] = {
    "frogs": {"FedSim averaging": (0.955, 0.956, 0.907), "Top1Sim": (0.918, 0.900, 0.839), "Combine": (0.982, 0.984, 0.984)},
    "synthetic": {"FedSim averaging": (0.915, 0.891, 0.772), "Top1Sim": (0.897, 0.876, 0.743)},
}
"""Accuracy where the keys carry noise of deviation 0, 0.1 and 0.2."""

METRIC = {"hdb": "rmse", "bike": "rmse", "frogs": "accuracy", "synthetic": "accuracy", "synthetic-random": "accuracy"}
"""What a set is measured by."""
