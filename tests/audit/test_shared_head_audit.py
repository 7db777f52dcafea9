"""What a feature party measures of a head on shares: how well scores would reveal a label that is one of its columns."""

import numpy as np
import torch

from tallystick.attacks.feature_inference.evaluate import evaluate_feature_inference
from tallystick.attacks.feature_inference.view import ColumnValues, SentEmbeddings
from tallystick.audit.shared_head import CHOSEN_LABEL


def test_few_known_rows_tell_a_column_whose_features_are_strong():
    # Five columns are strong axes of the features, and 300 weak axes are noise: brought to one deviation, these would hide them
    rng = np.random.default_rng(1)
    columns_NF = rng.normal(size=(1000, 5))
    turned_NF = columns_NF @ np.linalg.qr(rng.normal(size=(5, 5)))[0]
    features = np.concatenate([turned_NF, 0.03 * rng.normal(size=(1000, 300))], axis=1)
    features_ND = torch.from_numpy(features).float()
    columns = ColumnValues(
        numeric_NF=torch.from_numpy(columns_NF).float(),
        categorical_NG=torch.empty(1000, 0, dtype=torch.int64),
        numeric=tuple("abcde"),
        categorical=(),
        categories=(),
    )
    sent = SentEmbeddings(last_BD=features_ND, mean_BD=features_ND, looks_BE=features_ND, looks_at_BL=None)
    leaks = evaluate_feature_inference(sent, columns, known=(20, 200), draws=1, attacks=CHOSEN_LABEL)
    assert leaks.mean(20) > 0.8
    assert leaks.mean(200) > 0.98
    assert leaks.by_attack["chosen-label-scaled", 20] < 0.3
