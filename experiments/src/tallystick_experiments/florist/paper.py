"""List FLORIST's printed numbers (tables 1, 2, 3, 5, 6, 7, 8, and the figures in its text on figures 2 and 3).

The curves of figures 2 and 3 are pictures without numbers. The drops stated in the text are the only figures on them.
"""

from typing import Any

_LABELS = ("majority", "majority-tr", "majority-te", "minority", "random-pos", "random-pred", "neighbors")
_FEATURES = ("gaussian", "random", "sampling", "sampling-tr", "sampling-te")
_RATIOS = (0.05, 0.1, 0.25, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95)

ATTACKED_RATIO = 0.5  # the ratio of the paper's tables of attacks
LABEL_ATTACK_AUC = {  # ratio .5; tables 1 and 6
    "criteo": dict(zip(_LABELS, (0.5761, 0.5768, 0.5764, 0.6511, 0.5342, 0.5074, 0.5445), strict=True)),
    "avazu": dict(zip(_LABELS, (0.558341, 0.558277, 0.557430, 0.584588, 0.442587, 0.500570, 0.536879), strict=True)),
}
FEATURE_ATTACK_AUC = {  # ratio .5; tables 2 and 7
    "criteo": dict(zip(_FEATURES, (0.9766, 0.982, 0.5059, 0.5067, 0.5064), strict=True)),
    "avazu": dict(zip(_FEATURES, (0.896055, 0.897465, 0.540238, 0.534171, 0.557020), strict=True)),
}
AUC_CHANGE_PERCENT = {  # FLORIST against baseline-partial, both sides at the ratio; tables 3 and 8
    "criteo": dict(zip(_RATIOS, (-0.076, -0.165, -0.408, -1.259, -1.707, -3.081, -3.566, -4.924, -5.119), strict=True)),
    "avazu": dict(zip(_RATIOS, (-0.066, -0.17, -0.41, -1.14, -1.75, -3.78, -4.71, -11.55, -11.71), strict=True)),
}
DRAWS = {  # random-pred on Avazu, ratio .5, 2 epochs; table 5
    "auc": dict(enumerate((0.7465, 0.7482, 0.7482, 0.7486, 0.7490, 0.7491, 0.7489, 0.7492, 0.7492, 0.7493), start=1)),
    "attack_auc": dict(enumerate((0.5001, 0.5227, 0.5812, 0.6249, 0.6512, 0.6753, 0.7041, 0.7175, 0.7299, 0.7438), start=1)),
}
STATED_DROPS_PERCENT: dict[str, list[dict[str, Any]]] = {  # drops of test AUC, from the text of sections 3.1, 3.2 and I.2
    "criteo": [
        {"side": "labels", "strategy": "baseline-partial", "against": "baseline-full", "ratio": 0.95, "drop": 3.8},
        {"side": "labels", "strategy": "majority-tr", "against": "baseline-partial", "ratio": 0.95, "drop": 0.67},
        {"side": "labels", "strategy": "majority-tr", "against": "baseline-partial", "ratio": 0.5, "drop": 0.33},
        {"side": "features", "strategy": "sampling-tr", "against": "baseline-partial", "ratio": 0.95, "drop": 4.9},
        {"side": "features", "strategy": "sampling-tr", "against": "baseline-partial", "ratio": 0.5, "drop": 0.77},
    ],
    "avazu": [
        {"side": "features", "strategy": "sampling-tr", "against": "baseline-partial", "ratio": 0.95, "drop": 6.7},
        {"side": "features", "strategy": "sampling-tr", "against": "baseline-partial", "ratio": 0.5, "drop": 0.88},
    ],
}
TABLES = {
    "criteo": {"labels": "1", "features": "2", "both": "3", "figure": "2"},
    "avazu": {"labels": "6", "features": "7", "both": "8", "draws": "5", "figure": "3"},
}
