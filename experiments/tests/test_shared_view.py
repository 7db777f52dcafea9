"""The attack on everything that a party of a head on shares saw finds planted leaks, and many useless words cost little."""

import numpy as np
import pytest

from tallystick.secret_sharing import feature_products
from tallystick_experiments.catalogue.public import load_table
from tallystick_experiments.quality import shared_view
from tallystick_experiments.quality.shared_view import PartyWords

WORDS = 1_500


@pytest.fixture
def words():
    """Make useless words of 300 rows, as numbers of length 1 on the mean."""
    return np.random.default_rng(3).normal(size=(300, WORDS)).astype(np.float32) / np.sqrt(WORDS)


def explained(left_NT, corrections_NT):
    return 1 - np.square(left_NT - corrections_NT).mean() / np.square(left_NT).mean()


def test_words_that_say_nothing_cost_little(words):
    left_NT = np.random.default_rng(4).normal(size=(300, 1))
    assert -0.03 < explained(left_NT, shared_view._correction([words @ words.T], left_NT, seed=1)) < 0.03


def test_few_telling_words_are_found_among_the_means(words):
    left_NT = np.random.default_rng(4).normal(size=(300, 1))
    telling = np.concatenate([left_NT + np.random.default_rng(5).normal(size=(300, 1)), words[:, :20]], axis=1) / np.sqrt(21)
    both = [words @ words.T, (telling @ telling.T).astype(np.float32)]
    assert explained(left_NT, shared_view._correction(both, left_NT, seed=1)) > 0.3  # half of the variance is there


def test_each_word_comes_to_its_row_once_a_step():
    view = PartyWords()
    view.begin_matrices(4)
    matrix = np.arange(8, dtype=np.uint64).reshape(4, 2)
    view.add_in_order("matrix", matrix[:3])
    view.add_in_order("matrix", matrix[3:])
    for rows_B in (np.array([2, 0]), np.array([3, 1]), np.array([1, 2])):
        view.begin_step(rows_B)
        view.add_of_step("score", rows_B[:, None].astype(np.uint64))
        view.add_of_step("score", np.zeros((2, 1), dtype=np.uint64))
    every, few = shared_view._by_row(view.words["training"], 4)
    assert sorted(view.words["training"]) == ["matrix", "score 1.0", "score 2.0"]
    assert len(few) == 3
    first, second = (parts[:, 0] for parts in every[1:3])  # the first score, step by step
    assert first.tolist() == [0, 1, 2, 3]
    assert second.tolist() == [0, 1, 2, 0]  # rows 0 and 3 had one step
    assert every[0][:, :2].tolist() == matrix.tolist()


@pytest.mark.long  # a run and its attack take a quarter of a minute
def test_masks_of_factors_with_few_places_are_found_in_the_whole_view(monkeypatch):
    def leaking(side, *given):
        draw = side.masks.draw
        side.masks.draw = lambda *shape: draw(*shape) >> np.uint64(60)
        try:
            return feature_products.share_products(side, *given)
        finally:
            del side.masks.draw

    monkeypatch.setattr(shared_view, "share_products", leaking)
    figures = shared_view.view_figures(load_table("breast", None), 1)
    assert figures["columns, training rows: gain, from"] > 0.02
