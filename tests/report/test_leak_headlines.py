"""Of findings that tell as much, the headline shows the one that somebody reaches who knows least."""

import pytest

from tallystick.report.leaks import feature_headline, linkage_headline
from tallystick.results import FeatureAudit, LinkageSummary, LocatedKeys, MeanRebuilt, RebuiltColumn, RowGroup


def column(known: int, value: float) -> RebuiltColumn:
    return RebuiltColumn(
        name="income", kind="numeric", known=known, attack="ridge", value=value, low=value, high=value, luck=0.05
    )


def audit(means: dict[int, float], worst: dict[int, float], groups: tuple[RowGroup, ...] = ()) -> FeatureAudit:
    return FeatureAudit(
        party="shop",
        by="bank",
        columns=[column(known, value) for known, value in worst.items()],
        means=[MeanRebuilt(known=known, value=value) for known, value in means.items()],
        groups=list(groups),
    )


@pytest.mark.parametrize(
    ("means", "worst", "who"),
    [
        ({0: 0.9, 20: 0.905, 200: 0.915}, {0: 0.97, 20: 0.97, 200: 0.98}, "bank, knowing no row,"),
        ({0: 0.3, 20: 0.9, 200: 0.915}, {0: 0.5, 20: 0.97, 200: 0.98}, "bank, knowing the columns of 20 rows,"),
        ({0: 0.3, 20: 0.6, 200: 0.915}, {0: 0.5, 20: 0.7, 200: 0.98}, "bank, knowing the columns of 200 rows,"),
        # on average as much, and of one column much more
        ({20: 0.30, 200: 0.31}, {20: 0.5, 200: 0.9}, "bank, knowing the columns of 200 rows,"),
    ],
)
def test_who_knows_fewest_rows_and_rebuilds_as_much_is_named(means, worst, who) -> None:
    line = feature_headline(audit(means, worst))
    assert line.startswith(f"Through cut embeddings, yes: {who}")


def test_of_several_groups_of_rows_too() -> None:
    validation = RowGroup(
        rows="validation rows",
        attacked=100,
        crossed=9,
        columns=[column(20, 0.975), column(200, 0.98)],
        means=[MeanRebuilt(known=20, value=0.96), MeanRebuilt(known=200, value=0.97)],
    )
    line = feature_headline(audit({20: 0.6, 200: 0.9}, {20: 0.7, 200: 0.95}, (validation,)))
    assert "knowing the columns of 20 rows, can rebuild the columns of other validation rows: 0.960 on average" in line


def located(name: str, median: float, attacker: str = "helper") -> LocatedKeys:
    return LocatedKeys(
        name=name,
        attacker=attacker,
        located="shop",
        placed=100,
        median=median,
        low=median,
        high=median,
        tenth=median / 2,
        chance=100.0,
        unit="m",
    )


def linkage(*attacks: LocatedKeys) -> LinkageSummary:
    return LinkageSummary(party="shop", neighbors=5, helper_sees="filters", guarantee="none", attacks=list(attacks))


def test_keys_are_located_by_whoever_knows_fewest_of_them() -> None:
    needs_ten, needs_none = "filter-geometry", "rank-geometry"
    (line,) = linkage_headline(linkage(located(needs_ten, 10.0), located(needs_none, 10.1)))
    assert "by rank-geometry" in line
    (line,) = linkage_headline(linkage(located(needs_ten, 10.0), located(needs_none, 20.0)))
    assert line.startswith("helper, knowing 10 keys, could place keys of shop by filter-geometry")
    first, second = linkage_headline(linkage(located(needs_ten, 5.0), located("greedy", 20.0, "bank")))
    assert first.startswith("bank could place keys of shop by greedy")
    assert second.startswith("helper, knowing 10 keys,")
