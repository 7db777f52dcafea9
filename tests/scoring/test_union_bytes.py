"""On a union: what each side sees of a score that the feature party asks for, by the real alignment and the bytes that cross."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from listening import Listening
from torch import nn

from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import parse_contract
from tallystick.config.party import PartyFile
from tallystick.dataset.own_rows import OwnRows
from tallystick.dataset.union import UnionDataset
from tallystick.network.channel import memory_channels
from tallystick.network.messages import encode
from tallystick.scoring.answering import OPEN
from tallystick.scoring.feature_party_asks import (
    AgreedBatches,
    AskByAgreedBatch,
    AskedLabelParty,
    BatchedRows,
    all_embedded,
    answer_with_scores,
)
from tallystick.scoring.journal import Journal
from tallystick.scoring.scoring_messages import OVER_BUDGET
from tallystick.serving.aligned_rows import names_of
from tallystick.storage import Origin
from tallystick.tables.encoder import Encoder, FeatureColumns
from tallystick.tables.keys import keys_of

sys.path.insert(0, str(Path(__file__).parent.parent / "alignment"))
from roles import in_threads

WIDTH, RUN, SIZE = 3, "0123456789abcdef", 25
COMMON, ONLY = 60, 40  # ids that both have, and that each has alone
SIDES = {"bank": range(COMMON + ONLY), "shop": [*range(COMMON), *range(COMMON + ONLY, COMMON + 2 * ONLY)]}


def key(number):
    return f"customer-{number:04}"


CONTRACT = parse_contract(
    {
        "name": "served",
        "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
        "alignment": {"method": "union", "keys": [{"name": "id"}]},
        "serving": {"ways": ["agreed-batch"], "window": SIZE},
    }
)


class Linear(nn.Module):
    """A bottom or a share of the network: it adds up a row's columns times some weights."""

    def __init__(self, *weights):
        super().__init__()
        self.weight_D = torch.tensor(weights)

    def forward(self, features):
        return features.numeric_NF * self.weight_D


class Scorer:
    def joint(self, cuts_BD, own_B):
        return {"score": torch.sigmoid(cuts_BD[0].sum(dim=1) + own_B.numeric_NF[:, 0]).numpy()}


class Side:
    """A party of the union: its rows, its alignment, and the content of each position."""

    def __init__(self, folder, name, align, channel):
        files = {part: folder / f"{part}.pem" for part in ("ca", "certificate", "key")}
        label = {"label": "y"} if name == "bank" else {}
        party = PartyFile.model_validate(
            {"party": name, "table": {"path": folder / "t.parquet"}, "keys": {"id": "id"}, "tls": files, **label}
        )
        rng = np.random.default_rng(len(name))
        self.numbers = rng.permutation(list(SIDES[name]))
        frame = pl.DataFrame({"id": [key(number) for number in self.numbers], "x": rng.normal(size=len(self.numbers))})
        keys = keys_of(frame, party, CONTRACT.alignment)
        self.alignment = align(keys.ids, channel, rng=SecureRandom())
        encoder = Encoder.fit(frame, FeatureColumns(numeric=("x",)), np.arange(frame.height))
        own = OwnRows(party=party, is_label=bool(label), frame=frame, keys=keys, alignment=self.alignment)
        self.source = UnionDataset.to_score(CONTRACT, own, encoder, secret_seed=lambda: 7).features_at
        self.keys = keys
        self.batches = self.batches_of(self.alignment)
        self.places = {key(self.numbers[row]).encode(): place for place, row in enumerate(self.alignment.rows_N) if row >= 0}

    def batches_of(self, alignment):
        return AgreedBatches.of(names_of(self, alignment), size=SIZE)


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("union")
    own, theirs = memory_channels("bank", "shop", timeout_s=60)
    return in_threads(
        lambda: Side(folder, "bank", union_label_party, own), lambda: Side(folder, "shop", union_feature_party, theirs)
    )


def crossed(sides, number, *, batches=None, gate=OPEN):
    """Let the feature party ask for one row in a new session. Return the score, and the bytes that each side sent."""
    bank, shop = sides
    own, theirs = map(Listening, memory_channels("bank", "shop", timeout_s=60))
    rows = BatchedRows(source=bank.source, batches=batches or bank.batches)
    options = {"width": WIDTH, "rows": rows, "gate": gate}
    answering = threading.Thread(target=answer_with_scores, args=(own, {RUN: Scorer()}), kwargs=options)
    answering.start()
    label_party = AskedLabelParty(channel=theirs, run=RUN, probabilities=True)
    cut_ND = all_embedded(Linear(1.0, -2.0, 0.5), shop.source, rows=len(shop.alignment), width=WIDTH)
    ask = AskByAgreedBatch(label_party=label_party, cut_ND=cut_ND, batches=shop.batches, places=shop.places)
    answered = ask([key(number).encode()], None)
    label_party.leave()
    answering.join(60)
    to_bank, to_shop = ([bytes(encode(message)) for message in side.received] for side in (own, theirs))
    assert len(to_bank) == 2  # the question, and the leave
    assert len(to_shop) == 1
    return answered, to_bank, to_shop


def test_both_sides_cut_the_same_batches(sides):
    bank, shop = sides
    assert [members.tolist() for members in bank.batches.members] == [members.tolist() for members in shop.batches.members]
    assert min(map(len, bank.batches.members)) >= SIZE


def test_the_bytes_are_the_same_for_a_row_that_both_have_and_one_that_the_label_party_lacks(sides):
    _, shop = sides
    batch_of = {number: int(shop.batches.batch_N[shop.places[key(number).encode()]]) for number in SIDES["shop"]}
    for batch in set(batch_of.values()):
        both = next(number for number, its in batch_of.items() if its == batch and number < COMMON)
        lacked = next(number for number, its in batch_of.items() if its == batch and number >= COMMON)
        one, other = crossed(sides, both), crossed(sides, lacked)
        assert one[1:] == other[1:]
        assert one[0].is_here.all()
        assert other[0].is_here.all()


def test_no_key_and_no_universal_id_crosses_and_all_rows_of_a_batch_have_an_embedding_and_a_score(sides):
    bank, shop = sides
    asked = 3
    answered, to_bank, to_shop = crossed(sides, asked)
    position = shop.places[key(asked).encode()]
    members = shop.batches.members[shop.batches.batch_N[position]]
    assert len(to_bank[0]) >= len(members) * WIDTH * 4
    for message in (*to_bank, *to_shop):
        assert b"customer" not in message
        assert not any(bytes(uid) in message for uid in shop.alignment.uids_N16)
    lacked = shop.alignment.rows_N[members] < 0
    assert 0 < lacked.sum() < len(members)  # stand-ins cross as rows do
    at = torch.tensor([position])
    expected = Scorer().joint([Linear(1.0, -2.0, 0.5)(shop.source(at))], bank.source(at))["score"]
    assert answered.cuts_ED[0][:, 0].tolist() == expected.tolist()


def test_a_new_alignment_begins_no_budget_anew_and_shows_not_whose_rows_are_over_it(sides, tmp_path):
    """One more key on a union gives all rows new universal ids. A side that brings one gets no second day."""
    bank, shop = sides
    gate = Journal(origin=Origin(folder=tmp_path), secret=bytes(32), a_day_per_row=1)
    first, _, _ = crossed(sides, 3, gate=gate)
    assert first.is_here.all()
    anew = replace(bank.alignment, uids_N16=np.flip(bank.alignment.uids_N16).copy())
    batch = shop.batches.members[shop.batches.batch_N[shop.places[key(3).encode()]]]
    assert len(set(bank.alignment.rows_N[batch] < 0)) == 2  # some that the label party has, some that it lacks
    again, _, (answer,) = crossed(sides, 3, batches=bank.batches_of(anew), gate=gate)
    assert again.state_B.tolist() == [OVER_BUDGET]
    assert bytes([OVER_BUDGET]) * len(batch) in answer
    gate.close()
