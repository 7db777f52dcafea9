"""State what an exploration of a partner discloses."""

from tallystick.config.contract import Contract
from tallystick.disclosure.disclosure import Disclosure, RunFacts, parties_of, stated
from tallystick.results import Learnt


def _learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    sample = facts.sample
    if sample is None:
        return []
    label, feature = parties_of(contract)
    own = label if facts.party == label else feature
    other = feature if own == label else label
    return [
        Learnt(
            step="alignment",
            party=own,
            what=f"{other} has {sample.ids[other]:,} ids. Which {sample.common:,} ids of the sample are common, and so about how "
            f"many of all. {sample.share:.1%} of all ids were drawn.",
            guarantee="no formal guarantee; the sample has all ids"
            if sample.share == 1
            else "no formal guarantee; both sides drew the sample's random salt together, so neither chose who is in it",
        )
    ]


EXPLORE = (
    Disclosure(
        name="`tallystick explore`",
        label_party="how many ids the other has; which of a sample are common; scores of its validation and test rows",
        feature_party="the same, except scores",
        guarantee="that of a head on shares; neither side can choose which ids of its table are drawn",
        fields=("Size.rows", "CoinCommitment.digest", "Coin.coin"),
        sentences=stated(
            lambda contract: contract.explore is not None,
            "`tallystick explore`: both learn how many ids the other has, and which ids of a sample are common. About "
            "{contract.explore.rows:,} ids of the smaller table are drawn by a salt from both; {label} learns what it "
            "does in a run, but about the sample alone. Each call draws another sample",
        ),
        learnt=_learnt,
    ),
)
