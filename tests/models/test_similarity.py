"""Merging several linked rows: each gate compared with a slow reference, and the published networks' sizes."""

import itertools
import math

import numpy as np
import pytest
import torch

from tallystick.config.contract import parse_contract
from tallystick.config.merge import AttentionMergeConfig, AverageMergeConfig, CNNMergeConfig, MergeKeys, Top1MergeConfig
from tallystick.config.sections import BinaryTarget, NetworkModel
from tallystick.errors import ConfigError
from tallystick.models.build import build_bottom, build_label_model
from tallystick.models.dropout import Dropout
from tallystick.models.similarity.merges import MERGES, SMALLEST, AttentionMerge, AverageMerge, CNNMerge, LearntWeight, ascending
from tallystick.run_folder.trained import Architecture
from tallystick.tables.features import FeatureShape
from tallystick.tables.linked_columns import CandidateLinks, LinkedFeatures

PUBLISHED = CNNMergeConfig(
    method="cnn", width=10, activation="sigmoid", own_columns=False, similarity_input=False, top=(), channels=8, kernel=7
)
MERGE_KEYS = {choice.model_fields["method"].annotation.__args__[0]: choice for choice in MergeKeys.choices()}
B, K, L = 4, 5, 3


@pytest.mark.parametrize(("candidates", "inputs", "parameters"), [(50, (68, 8), 1_869_806), (100, (54, 22), 3_469_806)])
def test_the_published_networks_have_the_papers_number_of_parameters(candidates, inputs, parameters):
    """Table 9, FedSim: hdb and house."""
    model = NetworkModel(hidden=(200, 100, 100), cut_after=2, merge=PUBLISHED)
    own, theirs = (FeatureShape(numeric=count, cardinalities=()) for count in inputs)
    bottom = build_bottom(model, "schools", theirs, seed=1)
    label = build_label_model(model, "flats", own, [bottom.width], outputs=1, seed=1, candidates=[candidates])
    assert sum(weight.numel() for module in (bottom, label) for weight in module.parameters()) == parameters


def drawn(seed=0):
    generator = torch.Generator().manual_seed(seed)
    output_BKL, weight_BK = torch.randn(B, K, L, generator=generator), torch.rand(B, K, generator=generator)
    present_BK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], dtype=torch.bool)
    return output_BKL, weight_BK, present_BK


def test_the_convolution_is_the_sum_that_the_paper_means():
    settings = CNNMergeConfig(method="cnn", channels=2, kernel=3, hidden=7)
    torch.manual_seed(1)
    merge = CNNMerge(K, L, settings).eval()
    output_BKL, weight_BK, present_BK = drawn()
    kernel_CK = merge.convolution.weight[:, 0, :, 0].detach().numpy()
    bias_C = merge.convolution.bias.detach().numpy()
    rows = []
    for output_KL, weight_K, present_K in zip(output_BKL.numpy(), weight_BK.numpy(), present_BK.numpy(), strict=True):
        padded = np.zeros((K + 4, L))
        padded[2 : 2 + K] = output_KL * (weight_K * present_K)[:, None]
        found = np.array(
            [
                [
                    [sum(kernel_CK[c, j] * padded[i + j, column] for j in range(3)) + bias_C[c] for column in range(L)]
                    for i in range(K + 2)
                ]
                for c in range(2)
            ]
        )
        linear = merge.layers[3]
        rows.append(np.maximum(linear.weight.detach().numpy() @ np.maximum(found, 0).ravel() + linear.bias.detach().numpy(), 0))
    np.testing.assert_allclose(merge(output_BKL, weight_BK, present_BK).detach().numpy(), rows, atol=1e-5)


def test_the_average_is_weighted_by_what_is_there():
    output_BKL, weight_BK, present_BK = drawn()
    found = AverageMerge(K, L, AverageMergeConfig(method="average"))(output_BKL, weight_BK, present_BK).numpy()
    for row, output_KL, weight_K, present_K in zip(found, output_BKL.numpy(), weight_BK.numpy(), present_BK.numpy(), strict=True):
        expected = np.average(output_KL[present_K], axis=0, weights=weight_K[present_K]) if present_K.any() else np.zeros(L)
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_attention_is_softmax_of_scores_times_weights_over_what_is_there():
    torch.manual_seed(1)
    merge = AttentionMerge(K, L, AttentionMergeConfig(heads=2))
    output_BKL, weight_BK, present_BK = drawn()
    found = merge(output_BKL, weight_BK, present_BK).detach()
    for b, head in itertools.product(range(B), range(2)):
        there = [k for k in range(K) if present_BK[b, k]]
        scores = [merge.score(output_BKL[b, k])[head].item() for k in there]
        shares = [weight_BK[b, k].item() * math.exp(score) for k, score in zip(there, scores, strict=True)]
        values = [merge.value(output_BKL[b, k])[head * L : head * L + L].detach() for k in there]
        expected = sum((share / sum(shares) * value for share, value in zip(shares, values, strict=True)), torch.zeros(L))
        torch.testing.assert_close(found[b, head * L : head * L + L], expected)


def features(generator, places_BK):
    similarity_BK = torch.randn(places_BK.shape, generator=generator).masked_fill(places_BK < 0, 0)
    return LinkedFeatures(
        numeric_NF=torch.randn(len(places_BK), 3, generator=generator),
        categorical_NG=torch.empty(len(places_BK), 0, dtype=torch.int64),
        linked=(CandidateLinks(place_BK=places_BK, similarity_BK=similarity_BK),),
    )


def shuffled(own, order_K):
    (linked,) = own.linked
    moved = CandidateLinks(place_BK=linked.place_BK[:, order_K], similarity_BK=linked.similarity_BK[:, order_K])
    return LinkedFeatures(numeric_NF=own.numeric_NF, categorical_NG=own.categorical_NG, linked=(moved,))


@pytest.mark.parametrize("method", MERGES)
def test_the_order_of_links_and_the_rows_behind_pads_change_nothing(method):
    """Attention and average by themselves; the others because of the sort gate."""
    generator = torch.Generator().manual_seed(2)
    places_BK = torch.tensor([[0, 1, 2, 3], [3, 2, -1, 0], [1, -1, -1, -1], [-1, -1, -1, -1]])
    own, cut_RD = features(generator, places_BK), torch.randn(4, 6, generator=generator)
    sort = method not in ("attention", "average")
    known = MERGE_KEYS[method].model_fields
    merge = {"sort": sort, "heads": 2, "kernel": 2, "hidden": 5}
    merge = {"method": method, "width": 4, "top": (3,)} | {key: value for key, value in merge.items() if key in known}
    model = NetworkModel.model_validate({"hidden": (8, 8), "cut_after": 1, "merge": merge})
    label = build_label_model(model, "p", FeatureShape(numeric=3, cardinalities=()), [6], outputs=1, seed=1, candidates=[4])
    logits_B = label([cut_RD], own)
    torch.testing.assert_close(label([cut_RD], shuffled(own, torch.tensor([2, 0, 3, 1]))), logits_B)
    changed_RD = cut_RD.clone()
    changed_RD[3] += 100  # no candidate of the last two
    assert torch.equal(label([changed_RD], own)[2:], logits_B[2:])
    assert logits_B.isfinite().all()


def test_first_is_the_most_similar_alone():
    generator = torch.Generator().manual_seed(3)
    own = features(generator, torch.tensor([[0, 1, 2], [2, 1, 0]]))
    best_B = own.linked[0].similarity_BK.argmax(dim=1)
    alone = CandidateLinks(place_BK=own.linked[0].place_BK.gather(1, best_B[:, None]), similarity_BK=torch.zeros(2, 1))
    model = NetworkModel(hidden=(8, 8), cut_after=1, merge=Top1MergeConfig(method="top1", similarity_input=False, width=4))
    cut_RD = torch.randn(3, 6, generator=generator)
    logits = []
    for links in (own, LinkedFeatures(numeric_NF=own.numeric_NF, categorical_NG=own.categorical_NG, linked=(alone,))):
        count = links.linked[0].place_BK.shape[1]
        label = build_label_model(
            model, "p", FeatureShape(numeric=3, cardinalities=()), [6], outputs=1, seed=1, candidates=[count]
        )
        logits.append(label([cut_RD], links))
    torch.testing.assert_close(logits[0], logits[1])


def test_a_learnt_weight_is_a_small_network_of_one_number():
    gate = LearntWeight()
    first, _, second, _ = gate.layers
    similarity = 0.7
    hidden = np.maximum(first.weight.detach().numpy()[:, 0] * similarity + first.bias.detach().numpy(), 0)
    expected = 1 / (1 + np.exp(-(second.weight.detach().numpy()[0] @ hidden + second.bias.item()))) + SMALLEST
    assert gate(torch.tensor([[similarity]])).item() == pytest.approx(expected, abs=1e-6)
    assert sum(weight.numel() for weight in gate.parameters()) == 31


def test_links_are_sorted_from_the_least_similar_and_pads_come_first():
    similarity_BK, present_BK = torch.tensor([[0.3, -2.0, 1.0, 0.0]]), torch.tensor([[True, True, True, False]])
    assert ascending(similarity_BK, present_BK).tolist() == [[3, 1, 0, 2]]


def test_dropout_goes_on_where_it_was():
    torch.manual_seed(5)
    one = Dropout(0.5)
    other = Dropout(0.5)
    values = torch.ones(1000)
    one(values)
    other.load_state_dict(one.state_dict())
    after = one(values)
    assert torch.equal(after, other(values))
    assert set(after.tolist()) == {0.0, 2.0}
    assert 400 < int((after == 0).sum()) < 600  # 6 standard deviations
    assert torch.equal(one.eval()(values), values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": "attention", "weight": "similarity"},
            "model.merge.weight = .similarity.: only works with model.merge.method = cnn or mlp",
        ),
        ({"method": "top1", "sort": False}, "model.merge.sort = false"),
        ({"method": "median"}, "model.merge.method"),
        ({"width": 0}, "model.merge.width"),
    ],
)
def test_merges_that_cannot_be_are_refused(changes, message):
    values = {
        "name": "x",
        "parties": {"a": {"role": "label"}, "b": {"role": "feature"}},
        "alignment": {"keys": [{"name": "id"}]},
        "model": {"merge": changes},
    }
    with pytest.raises(ConfigError, match=message):
        parse_contract(values)


def test_an_own_top_is_built_for_the_merged_rows_and_no_other_is_taken():
    model = NetworkModel(
        hidden=(8, 8), cut_after=1, numeric="plain", top="torch.nn:Linear", merge=AttentionMergeConfig(width=4, heads=2)
    )
    label = build_label_model(model, "p", FeatureShape(numeric=3, cardinalities=()), [6], outputs=2, seed=1, candidates=[5])
    assert (label.top.in_features, label.top.out_features) == (2 * 4 + 8, 2)  # both heads, and the own embedding
    taken = Architecture(model=model, target=BinaryTarget(), seed=1, party="p", top=torch.nn.Linear(3, 1))
    with pytest.raises(ConfigError, match=r"name the class in the contract's model\.top"):
        taken.label_model(None, [6], candidates=[5])
