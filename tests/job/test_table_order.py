"""Nothing that leaves a party depends on the order of its table: sorted by label or key, all that crosses is the same to the bit.

All draws come from seeded streams. Where rows are put in a secret order, a permuted table is given the order that places its rows
like those of the other table: a uniform permutation after any other is uniform.
"""

import threading
from functools import partial

import numpy as np
import polars as pl
import pytest
import similar
from lanes import short_lane_of
from sides import Sides
from tiny import columns, contract_values, seed_system, tables

from tallystick.alignment.randomness import SecureRandom
from tallystick.job.phases import align
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import encode
from tallystick.simulation import Silent, simulate

BANK_AND_SHOP, THREE = ("bank", "shop"), ("bank", "shop", "dairy")
QUICK = {
    "training__epochs": 1,
    "evaluation__bootstrap": 0,
    "evaluation__own_columns_baseline": False,
}


def with_events(given, name, *, seed=3):
    """Make several rows of each id in one party's table, each with its own numbers, label and time."""
    rng = np.random.default_rng(seed)
    frame = given[name]
    frame = frame[rng.permutation(np.repeat(np.arange(frame.height), rng.integers(1, 5, frame.height)))]
    own = {"x": pl.Series(rng.normal(size=frame.height)), "visited": pl.Series(rng.permutation(frame.height))}
    labels = {"y": pl.Series(rng.integers(0, 2, frame.height))} if "y" in frame.columns else {}
    return {**given, name: frame.with_columns(**own, **labels)}


def plain(parties=BANK_AND_SHOP, **changes):
    return contract_values(parties, **{**QUICK, **changes}), tables(parties, rows=160), columns(parties)


def by_time(scene):
    contract, given, named = scene
    contract = {**contract, "split": {"method": "time", "validation": 0.1, "test": 0.2}}
    return contract, given, {**named, "bank": {**named["bank"], "time": "visited" if "visited" in given["bank"] else "day"}}


def events(**changes):
    contract, given, named = plain(alignment__duplicates="all", **changes)
    return contract, with_events(given, "bank"), named


def visits():
    """The feature party summarises its own rows."""
    contract, given, named = plain()
    repeats = {"latest": "visited", "aggregate": {"x": "mean"}, "count": "visits"}
    return contract, with_events(given, "shop"), {**named, "shop": {**named["shop"], "repeats": repeats}}


def events_of_three():
    contract, given, named = plain(THREE, alignment__duplicates="all")
    return contract, with_events(given, "bank"), named


def similar_rows():
    given = similar.tables(BANK_AND_SHOP, rows=60, places=12)
    return similar.contract_values(BANK_AND_SHOP, **QUICK), given, similar.columns(BANK_AND_SHOP)


MEASURED = {
    "evaluation__importance": {"own_columns": True, "feature_columns": "label-party", "repeats": 1},
    "evaluation__own_columns_baseline": True,
}
SCENES = {
    "intersection": plain,
    "against cheats": partial(plain, alignment__security="malicious"),
    "two feature parties": partial(plain, THREE),
    "no gradients": partial(plain, training__gradients="none"),
    "label DP, importance of columns": partial(plain, defense=[{"method": "label-dp", "epsilon": 1.0}], **MEASURED),
    "marvell": partial(plain, defense=[{"method": "marvell", "power": 1.0}]),
    "shared figures": partial(plain, evaluation__share_metrics=["auc"]),
    "a split by time": lambda: by_time(plain()),
    "all rows of an id": events,
    "all rows of an id, two feature parties": events_of_three,
    "all rows of an id, a split by time": lambda: by_time(events()),
    "a feature party's rows summed up": visits,
    "unaligned rows": partial(plain, unaligned={"method": "heuristic"}),
    "union": partial(plain, alignment__method="union"),
    "union, sampled": partial(plain, alignment__method="union", union={"features": "sampling"}),
    "union, spliced": partial(plain, alignment__method="union", union={"features": "splice"}),
    "similarity": similar_rows,
}


class ByRows(SecureRandom):
    """Draw for the rows of a permuted table, ``row_N`` of which are the rows of the former table, in its order."""

    def __init__(self, source, row_N):
        super().__init__(source=source)
        object.__setattr__(self, "row_N", row_N)

    def permutation(self, count):
        drawn = super().permutation(count)
        return self.row_N[drawn] if count == len(self.row_N) else drawn


def crossed(scene, monkeypatch, *, orders):
    """Return all messages of a run, by sender and receiver, with the tables of these parties in these orders."""
    contract, given, named = scene
    sent, send = {}, MemoryChannel.send
    given = given | {name: given[name][order_N] for name, order_N in orders.items()}
    with monkeypatch.context() as patch:
        seed_system(patch)
        seeded, random_of = align.SecureRandom, align.random_of

        def rows_here():
            name = threading.current_thread().name.removeprefix("simulate-")
            return np.argsort(orders[name]) if name in orders else np.arange(given[name].height if name in given else 0)

        def kept(channel, message):
            sent.setdefault((threading.current_thread().name, channel.peer), []).append((type(message), bytes(encode(message))))
            send(channel, message)

        patch.setattr(MemoryChannel, "send", kept)
        patch.setattr(align, "random_of", lambda secret: ByRows(random_of(secret).source, rows_here()))
        if contract["alignment"]["method"] == "similarity":
            patch.setattr(align, "SecureRandom", lambda: ByRows(seeded().source, rows_here()))
        simulate(contract, given, named, watcher=Silent())
    return sent


def shape_of(sent):
    """Return kind and length of every message, in order."""
    return {ends: [(kind, len(text)) for kind, text in messages] for ends, messages in sent.items()}


@pytest.mark.parametrize("name", short_lane_of(SCENES, 4))
def test_all_that_crosses_stays_to_the_bit_whatever_the_order_of_a_table(name, monkeypatch):
    scene = SCENES[name]()
    before = crossed(scene, monkeypatch, orders={})
    assert sum(map(len, before.values())) > 10
    orders = {
        party: frame["y" if "y" in frame.columns else frame.columns[0]].arg_sort().to_numpy().astype(np.int64)
        for party, frame in scene[1].items()
    }
    assert all((np.diff(order_N) != 1).any() for order_N in orders.values())
    after = crossed(scene, monkeypatch, orders=orders)
    assert shape_of(after) == shape_of(before)
    assert after == before


PREDICTED = {
    "Diffie-Hellman": {},
    "oblivious transfer": {"alignment__protocol": "oblivious-transfer"},
    "against cheats": {"alignment__security": "malicious"},
    "several rows of an id": {"alignment__duplicates": "all", "serving": None},
    "union": {"alignment__method": "union"},
}


def heard_in_a_prediction(folder, monkeypatch, given, *, later, **changes):
    """Return all that each side is sent in a prediction with tables in another order than in training."""
    with monkeypatch.context() as patch:
        sides = Sides(folder, patch, given, training__epochs=1, **changes)
        sides.job.change("bank", weight=None)
        assert sides.run() is None
        sides.tables(later)
        assert sides.predict() is None
    return list(sides.sent), list(sides.told)


@pytest.mark.parametrize("name", short_lane_of(PREDICTED, 2))
def test_a_prediction_is_to_the_bit_the_same_whatever_the_order_of_a_table(name, tmp_path, monkeypatch):
    given = tables(BANK_AND_SHOP, rows=120)
    if name == "several rows of an id":
        given = with_events(given, "bank")
    before = heard_in_a_prediction(tmp_path / "before", monkeypatch, given, later=given, **PREDICTED[name])
    assert min(map(len, before)) > 5
    later = {"bank": given["bank"].sort("y", "x"), "shop": given["shop"].sort("x")}
    assert heard_in_a_prediction(tmp_path / "sorted", monkeypatch, given, later=later, **PREDICTED[name]) == before
