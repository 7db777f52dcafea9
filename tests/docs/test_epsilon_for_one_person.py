"""The officer's example of what an epsilon means for one person has the numbers that follow from the definition."""

import math
import re
from pathlib import Path
from statistics import NormalDist

import numpy as np
import torch

from tallystick.defenses.label_dp import LabelDP
from tallystick.privacy.gaussian import gaussian_epsilon, gaussian_multiplier

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-leaks-what-to-choose.md"
TEXT = " ".join(PAGE.read_text(encoding="utf-8").partition("## What ε means for one person")[2].partition("\n## ")[0].split())
DELTA = 1e-5


def after(before: float, factor: float) -> float:
    """Return the belief whose odds are those of ``before``, times a factor."""
    odds = before / (1 - before) * factor
    return odds / (1 + odds)


def percent(share: float) -> int:
    return round(100 * share)


def test_the_table_of_beliefs_is_the_factor_on_the_odds() -> None:
    rows = re.findall(r"\| (\d+) % \| (\d+) % to (\d+) % \| (\d+) % to (\d+) % \|", TEXT)
    assert len(rows) == 3
    for before, *cells in rows:
        bounds = [after(int(before) / 100, math.exp(sign * epsilon)) for epsilon in (1, 3) for sign in (-1, 1)]
        assert [int(cell) for cell in cells] == [percent(bound) for bound in bounds]
    assert f"{math.exp(1):.1f} for ε = 1 and {math.exp(3):.0f} for ε = 3" in TEXT
    assert f"count as ε = 2, and 50 % may become {percent(after(0.5, math.exp(2)))} %" in TEXT


def test_label_dp_replaces_as_many_labels_as_the_page_says() -> None:
    assert "at ε = 1 it replaces 27 in 100 yes-or-no labels, at ε = 3 only 5 in 100" in TEXT
    rows = 200_000  # a share has a deviation of at most .001, so 5 of them are missed with a chance below 1e-6
    for epsilon, share in ((1.0, 0.27), (3.0, 0.05)):
        assert percent(1 / (1 + math.exp(epsilon))) == 100 * share
        random_bytes = np.random.default_rng(1).bytes
        replaced = LabelDP(epsilon=epsilon)(torch.zeros(rows), classes=2, random_bytes=random_bytes)
        assert abs(float(replaced.mean()) - 1 / (1 + math.exp(epsilon))) < 0.005


def test_what_noisy_embeddings_promise_one_release_and_ten() -> None:
    multiplier = gaussian_multiplier(1.0, DELTA)
    loss = NormalDist(1 / (2 * multiplier**2), 1 / multiplier)  # of one release, between two rows that differ most
    assert math.ceil(10_000 * (1 - loss.cdf(1))) == 2
    ten = gaussian_epsilon(multiplier / math.sqrt(10), DELTA)
    assert "In up to 2 of 10,000 releases" in TEXT
    assert (
        f"Ten releases with fresh noise add up to ε = {ten:.1f}, and 50 % may become {percent(after(0.5, math.exp(ten)))} %"
        in TEXT
    )
