"""State what a count of common ids discloses."""

from tallystick.config.contract import Contract
from tallystick.disclosure.disclosure import Disclosure, parties_of


def _overlap(contract: Contract) -> list[str]:
    config = contract.overlap
    if config is None:
        return []
    label, feature = parties_of(contract)
    told_parties = {"both": f"{label} and {feature}", "label": label, "feature": feature}[config.told_to]
    by_group = f", by the groups of {config.groups}, whose names and sizes cross" if config.groups is not None else ""
    if config.epsilon is not None:
        bound = (
            f"with noise: {config.epsilon:g}-DP of the other side's ids, except with probability {config.delta:g}, for each run"
        )
    else:
        bound = (
            f"exact, if {config.least:,} or more, and if as many of each set are left; at most {config.answers} with one party. "
            "Two counts on tables that differ by one id show whether it is common"
        )
    other = (
        []
        if config.told_to == "both"
        else [f"`tallystick overlap`: {feature if config.told_to == 'label' else label} learns no count"]
    )
    return [
        f"`tallystick overlap`: both learn how many ids the other has; {told_parties} how many are common{by_group}; {bound}",
        *other,
    ]


OVERLAP = (
    Disclosure(
        name="`tallystick overlap`",
        label_party="how many ids the other has, and how many are common, by group if agreed; not which",
        feature_party="the same",
        guarantee="honest-but-curious peers; exact counts have no formal guarantee; with `overlap.epsilon` (ε, δ)-DP of "
        "which ids the other has, given how many",
        fields=("Size.rows", "Chunk.rows", "OverlapGroups.names", "OverlapCounts.counts"),
        sentences=_overlap,
    ),
)
