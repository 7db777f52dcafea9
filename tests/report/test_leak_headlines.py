"""Of findings of the same strength the headline shows the one that needs the least knowledge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.report.leaks import A_LITTLE, YES, feature_headline, gradients_headline, leak_headline, linkage_headline
from tallystick.results import (
    AttackResult,
    Audit,
    ColumnsFromGradients,
    FeatureAudit,
    LinkageSummary,
    LocatedKeys,
    MeanRebuilt,
    RebuiltColumn,
    RowGroup,
)


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


def told(means: dict[int, tuple[float, float]], columns: dict[int, tuple[float, float]]) -> ColumnsFromGradients:
    """Return figures with gradients and without, by known rows."""
    return ColumnsFromGradients(
        party="bank",
        by="shop",
        columns=[column(known, value) for known, (value, _) in columns.items()],
        without=[column(known, value) for known, (_, value) in columns.items()],
        means=[MeanRebuilt(known=known, value=value) for known, (value, _) in means.items()],
        means_without=[MeanRebuilt(known=known, value=value) for known, (_, value) in means.items()],
    )


@pytest.mark.parametrize(
    ("means", "columns", "who"),
    [
        # more known rows rebuild more, and gradients add as much with fewer
        ({20: (0.5, 0.2), 1000: (0.7, 0.4)}, {20: (0.6, 0.2), 1000: (0.8, 0.4)}, "shop, knowing the columns of 20 rows,"),
        ({20: (0.3, 0.2), 1000: (0.7, 0.4)}, {20: (0.3, 0.2), 1000: (0.8, 0.4)}, "shop, knowing the columns of 1000 rows,"),
        ({20: (0.5, 0.2), 1000: (0.9, 0.88)}, {20: (0.6, 0.2), 1000: (0.9, 0.88)}, "shop, knowing the columns of 20 rows,"),
    ],
)
def test_what_gradients_add_is_told_by_who_knows_fewest_rows(means, columns, who) -> None:
    assert gradients_headline(told(means, columns)).startswith(f"Through cut gradients, yes: {who}")


def test_a_strong_attack_within_luck_does_not_hide_a_weaker_one_beyond_it() -> None:
    """A wide interval of few rows is no reason to say that no attack found more than a guess."""
    wide = AttackResult(name="wide", view="shop, from cut gradients, knowing no label", auc=0.75, low=0.4, high=1.0)
    narrow = AttackResult(name="narrow", view="shop, from cut gradients, knowing no label", auc=0.7, low=0.69, high=0.71)
    (line,) = leak_headline(Audit(attacks=[wide, narrow]))
    assert line.startswith("Through cut gradients, yes: shop, knowing no label, can tell the classes apart with AUC 0.700")


figures = st.floats(0, 1)


@given(st.lists(st.tuples(st.sampled_from([0, 20, 200]), figures, st.floats(0, 0.2)), min_size=1, max_size=12))
def test_no_column_of_the_table_has_a_graver_verdict_than_the_headline(findings) -> None:
    columns = [
        RebuiltColumn(
            name=f"c{place}", kind="numeric", known=known, attack="ridge", value=value, low=value, high=value, luck=luck
        )
        for place, (known, value, luck) in enumerate(findings)
    ]
    counts = {each.known for each in columns}
    means = [
        MeanRebuilt(known=known, value=sum(each.value for each in columns if each.known == known) / len(columns))
        for known in counts
    ]
    gravest = max(
        YES if each.value >= 0.1 and each.value > each.luck else A_LITTLE if each.value > max(0.01, each.luck) else 0
        for each in columns
    )
    begins = {YES: "yes: ", A_LITTLE: "a little: ", 0: "no attack here found more"}[gravest]
    line = feature_headline(FeatureAudit(party="shop", by="bank", columns=columns, means=means))
    assert line.startswith(f"Through cut embeddings, {begins}")
    nothing = [MeanRebuilt(known=known, value=0.0) for known in counts]
    line = gradients_headline(ColumnsFromGradients(party="bank", by="shop", columns=columns, means=means, means_without=nothing))
    assert line.startswith(f"Through cut gradients, {begins}")


@given(st.lists(st.tuples(figures, st.floats(0.001, 0.3), st.booleans()), min_size=1, max_size=12))
def test_no_attack_on_labels_has_a_graver_verdict_than_the_headline(findings) -> None:
    attacks = [
        AttackResult(
            name=f"attack {place}",
            view=f"shop, from cut gradients, knowing {'40 labels' if knows else 'no label'}",
            auc=auc,
            low=auc - half,
            high=auc + half,
        )
        for place, (auc, half, knows) in enumerate(findings)
    ]
    (together,) = leak_headline(Audit(attacks=attacks))
    grave = {"yes: ": YES, "a little: ": A_LITTLE, "no attack": 0}

    def verdict(line: str) -> int:
        return next(value for words, value in grave.items() if line.startswith(f"Through cut gradients, {words}"))

    # judged as the best of so many attacks: the others are no better than a guess
    guesses = [
        AttackResult(name="guess", view=attacks[0].view, auc=0.5, low=0.5, high=0.5, chance=0.5) for _ in range(len(attacks) - 1)
    ]
    assert verdict(together) == max(verdict(leak_headline(Audit(attacks=[each, *guesses]))[0]) for each in attacks)
