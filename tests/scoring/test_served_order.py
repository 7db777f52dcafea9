"""Nothing that crosses in predicting and serving depends on the order of a table: in another order it gives the same bytes."""

import threading

import numpy as np
import polars as pl
import pytest
from lanes import short_lane_of
from listening import Listening
from tiny import contract_values, files_of, lay_out, of_each, seed_system, tables
from torch import nn

from tallystick.alignment.pairwise import LocalOptions
from tallystick.config.contract import parse_contract
from tallystick.config.party import PartyFile
from tallystick.dataset.datasets import dataset_of
from tallystick.dataset.own_rows import OwnRows
from tallystick.job import predict as predicting
from tallystick.job.phases import align
from tallystick.network.channel import memory_channels
from tallystick.network.messages import encode
from tallystick.scoring.answering import AnsweringRun, FindByPosition, FindInUnion, answer_questions
from tallystick.scoring.asking import AskAhead, AskByPosition, AskByWindow, Partners
from tallystick.scoring.feature_party_asks import (
    AgreedBatches,
    AskByAgreedBatch,
    AskedLabelParty,
    BatchedRows,
    all_embedded,
    answer_with_scores,
)
from tallystick.scoring.stores.table import Snapshot
from tallystick.serving.aligned_rows import names_of, own_places
from tallystick.tables.encoder import Encoder, FeatureColumns
from tallystick.tables.keys import keys_of
from tallystick.watcher import Silent

PARTIES, WIDTH, RUN = ("bank", "shop"), 3, "0123456789abcdef"


def sorted_otherwise(frame):
    """Return the rows as a query's ORDER BY would: by the label, or by a column if there is none."""
    return frame.sort("y" if "y" in frame.columns else "x")


# --- predict


class Sessions:
    """Replaces the network's sessions by channels in memory whose messages are kept."""

    def __init__(self):
        self.sent = {}
        ends = memory_channels(*PARTIES, timeout_s=60)
        self._ends = {name: Listening(end) for name, end in zip(PARTIES, ends, strict=True)}

    def __call__(self, _contract, party, work, *, watcher):  # noqa: ARG002
        threading.current_thread().name = party.party
        channel = self._ends[party.party]
        found = work({channel.peer: channel}, lambda: None)
        self.sent[party.party] = [bytes(encode(message)) for message in channel.sent]
        return found


PREDICTED = {
    "intersection": {},
    "all rows of an id": {"alignment__duplicates": "all"},
    "union": {"alignment__method": "union"},
    "rows that no partner has": {"unaligned": {"method": "heuristic"}},
}


def with_repeats(frame):
    rng = np.random.default_rng(3)
    frame = frame[rng.permutation(np.repeat(np.arange(frame.height), rng.integers(1, 4, frame.height)))]
    return frame.with_columns(x=pl.Series(rng.normal(size=frame.height)))


@pytest.mark.parametrize("kind", short_lane_of(PREDICTED, 2))
def test_predict_sends_the_same_bytes_whatever_the_order_of_a_table(kind, tmp_path, monkeypatch):
    given = tables(PARTIES, rows=200)
    if kind == "all rows of an id":
        given["bank"] = with_repeats(given["bank"])
    values = contract_values(PARTIES, training__epochs=1, evaluation__own_columns_baseline=False, **PREDICTED[kind])
    job = lay_out(tmp_path, PARTIES, values, given)
    job.run_all()

    def crossed(frames):
        sessions = Sessions()
        with monkeypatch.context() as patch:
            seed_system(patch)
            patch.setattr(predicting, "with_sessions", sessions)

            def predict(name):
                contract, party = files_of(job, name)
                path = tmp_path / f"{name}.parquet"
                frames[name].write_parquet(path)
                output = tmp_path / f"{name}-scores.csv" if name == "bank" or kind == "union" else None
                if output is not None:
                    output.unlink(missing_ok=True)
                predicting.predict_rows(contract, party, table=path, output=output, watcher=Silent())

            failed = {name: error for name, error in of_each(PARTIES, predict).items() if error is not None}
            assert not failed, failed
        return sessions.sent

    before = crossed(given)
    assert sum(map(len, before.values())) > 8
    for name in PARTIES:
        assert crossed({**given, name: sorted_otherwise(given[name])}) == before


# --- serve


class Bottom(nn.Module):
    """Gives each row's own number."""

    width = WIDTH

    def forward(self, features):
        return features.numeric_NF[:, :1].expand(-1, WIDTH).contiguous()


class Scorer:
    def joint(self, cuts_BD, own_B):
        return {"score": (cuts_BD[0][:, 0] + own_B.numeric_NF[:, 0]).sigmoid().numpy()}


class Serving:
    """A side that serves: its keys, its alignment with the other side, and its rows at the positions."""

    def __init__(self, contract, name, frame, channel):
        files = {part: f"{part}.pem" for part in ("ca", "certificate", "key")}
        of = {"keys": {"id": "id"}, "tls": files, **({"label": "y"} if name == "bank" else {})}
        self.party = PartyFile.model_validate({"party": name, "table": {"path": "t.parquet"}, **of})
        self.keys = keys_of(frame, self.party, contract.alignment)
        self.alignment = align.align_keys(contract, name, self.keys, {channel.peer: channel}, local=LocalOptions(threads=1))
        encoder = Encoder.fit(frame.sort("x"), FeatureColumns(numeric=("x",)), np.arange(frame.height))
        own = OwnRows(party=self.party, is_label=name == "bank", frame=frame, keys=self.keys, alignment=self.alignment)
        dataset = dataset_of(contract.linkage).to_score(contract, own, encoder, secret_seed=lambda: 7)
        self.source, self.places = dataset.features_at, own_places(self, self.alignment)
        if contract.linkage.imputes:
            self.finder = FindInUnion(source=self.source, rows=len(self.alignment))
        elif name == "shop":
            store = Snapshot.of(frame, self.keys, encoder)
            self.finder = FindByPosition(store=store, key_at=names_of(self, self.alignment))


def both_sides(contract, frames):
    ends = dict(zip(PARTIES, memory_channels(*PARTIES, timeout_s=60), strict=True))

    def side(name):
        threading.current_thread().name = name
        return Serving(contract, name, frames[name], ends[name])

    return of_each(PARTIES, side)


def asked_by_position(way, sides, asked):
    """The label party asks for some keys, one after the other."""
    ours, theirs = map(Listening, memory_channels(*PARTIES, timeout_s=60))
    partners = Partners(channels=[ours], widths=[WIDTH], run=RUN)
    runs = {RUN: AnsweringRun(bottom=Bottom(), finder=sides["shop"].finder)}
    answering = threading.Thread(target=answer_questions, args=(theirs, runs))
    answering.start()
    places, rows = sides["bank"].places, len(sides["bank"].alignment)
    if way == "ahead":
        building = AskAhead.building(partners, places, rows=rows)
        while (ask := next(building, building)) is not building:
            assert ask is None
    else:
        is_window = way == "window"
        ask = (
            AskByWindow.of(partners, places, size=16, secret=bytes(32))
            if is_window
            else AskByPosition(partners=partners, places=places)
        )
        for key in asked:
            assert ask([key, b"nobody"]).is_here.tolist() == [key in places, False]
    partners.leave()
    answering.join(60)
    return [[bytes(encode(message)) for message in each.sent] for each in (ours, theirs)]


def asked_by_agreed_batch(sides, asked):
    """The feature party asks."""
    bank, shop = sides["bank"], sides["shop"]
    ours, theirs = map(Listening, memory_channels(*PARTIES, timeout_s=60))
    batches = [AgreedBatches.of(names_of(side, side.alignment), size=16) for side in (bank, shop)]
    rows = BatchedRows(source=bank.source, batches=batches[0])
    answering = threading.Thread(target=answer_with_scores, args=(ours, {RUN: Scorer()}), kwargs={"width": WIDTH, "rows": rows})
    answering.start()
    label_party = AskedLabelParty(channel=theirs, run=RUN, probabilities=True)
    cut_ND = all_embedded(Bottom(), shop.source, rows=len(shop.alignment), width=WIDTH)
    ask = AskByAgreedBatch(label_party=label_party, cut_ND=cut_ND, batches=batches[1], places=shop.places)
    for key in asked:
        ask([key], None)
    label_party.leave()
    answering.join(60)
    return [[bytes(encode(message)) for message in each.sent] for each in (ours, theirs)]


SERVED = [
    *(("intersection", "first", way) for way in ("position", "window", "ahead")),
    *(("intersection", "all", way) for way in ("position", "window", "ahead")),
    ("intersection", "first", "agreed-batch"),
    ("union", "first", "ahead"),
    ("union", "first", "agreed-batch"),
]


@pytest.mark.parametrize(("method", "duplicates", "way"), SERVED)
def test_serving_sends_the_same_bytes_whatever_the_order_of_a_table(method, duplicates, way, monkeypatch):
    given = tables(PARTIES, rows=160)
    if duplicates == "all":
        given["bank"] = with_repeats(given["bank"])
    values = {"alignment__duplicates": duplicates, "serving": {"ways": [way], "window": 16}}
    contract = parse_contract(contract_values(PARTIES, alignment__method=method, **values))
    asked = [key.encode() for key in given["bank"].join(given["shop"], on="id", how="semi")["id"].unique().sort()[:20]]

    def crossed(frames):
        with monkeypatch.context() as patch:
            seed_system(patch)
            sides = both_sides(contract, frames)
        return asked_by_agreed_batch(sides, asked) if way == "agreed-batch" else asked_by_position(way, sides, asked)

    before = crossed(given)
    assert all(before)
    for name in PARTIES:
        assert crossed({**given, name: sorted_otherwise(given[name])}) == before
