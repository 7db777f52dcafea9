"""Where starting weights come from: a party's own secret in its folder, a number in a simulation, or the seed that all know."""

import stat
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from tiny import columns, contract_values, tables

from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.config.unaligned import JPLConfig
from tallystick.dataset.own_rows import OwnRows
from tallystick.dataset.union import UnionDataset
from tallystick.errors import ConfigError, DamagedFile
from tallystick.job.phases.defense import RunDefense
from tallystick.job.phases.train import start_of
from tallystick.models.build import BranchParts, build_bottom
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.randomness import generator_of
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.trained import Architecture
from tallystick.simulation import simulate
from tallystick.tables.features import FeatureShape
from tallystick.tables.keys import read_keys
from tallystick.training.unaligned.method import OwnPart
from tallystick.training.unaligned.method_table import method_of
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
SHAPE = FeatureShape(numeric=2, cardinalities=(3,))


def weights(contract, start):
    return build_bottom(contract.model, "shop", SHAPE, seed=start).state_dict()["layers.0.weight"]


def models(folder):
    return [tiny.weights(path) for path in sorted(folder.glob("*/*/model.safetensors"))]


@pytest.mark.unseeded
def test_each_run_starts_from_a_secret_of_its_own_which_its_folder_keeps(tmp_path):
    """Two secrets of 32 bytes are equal with a chance of 2^-256."""
    contract = parse_contract(contract_values(PARTIES))
    folders = [RunFolder.new(tmp_path / name, contract, "shop", key=None) for name in ("one", "other")]
    one, other = (start_of(contract, folder) for folder in folders)
    assert (len(one), one != other) == (32, True)
    assert start_of(contract, RunFolder.open(folders[0].path)) == one  # as a resumed run does
    assert stat.S_IMODE((folders[0].path / "start.json").stat().st_mode) == 0o600
    assert one.hex() not in repr(folders[0])
    assert not torch.equal(weights(contract, one), weights(contract, other))
    assert start_of(contract, folders[0].trial(1)) == start_of(contract, folders[0].trial(2)) == one


@pytest.mark.parametrize("name", ["start", "defense"])
def test_a_secret_of_the_run_that_is_gone_is_not_drawn_anew_and_another_is_not_taken_for_it(tmp_path, name):
    """Otherwise other weights would be sent, or labels flipped again, as if they were the same run's."""
    contract = parse_contract(contract_values(PARTIES))
    folder = RunFolder.new(tmp_path / "runs", contract, "shop", key=None)
    first, path = folder.secret(name), folder.path / f"{name}.json"
    assert folder.secret(name) == first
    folder.note(name, {"secret": (b"other" * 7)[:32].hex()})  # with this run's seal
    for look in (folder.check, lambda: folder.secret(name)):
        with pytest.raises(DamagedFile, match=rf"{name}\.json.* it holds another secret than this run began with"):
            look()
    path.unlink()
    for look in (folder.check, lambda: folder.secret(name)):
        with pytest.raises(DamagedFile, match=rf"{name}\.json.* it is missing.* start a new run on all sides"):
            look()
    assert not path.exists()
    folder.forget_training()
    assert (name == "start") == (name in folder.noted("drawn"))  # labels of a new alignment are flipped anew


def test_a_secret_that_is_drawn_anew_where_nothing_tells_of_the_old_one_is_charged_anew(tmp_path):
    """Its digest is lost, too, before a step was kept: labels are flipped again, and the ledger says so."""
    contract = parse_contract(contract_values(PARTIES, defense=[{"method": "label-dp", "epsilon": 1.0}]))
    ledger = Ledger.create(tmp_path / "ledger.sqlite", party="bank")
    values = {"party": "bank", "table": {"path": "t.parquet"}, "label": "y", "privacy": {"ledger": "ledger.sqlite"}}
    party, folder = parse_party(values, folder=tmp_path), RunFolder.new(tmp_path / "runs", contract, "bank", key=None)
    labels_N = torch.arange(8) % 2

    def charged_for():
        defense = RunDefense.of(contract, folder)
        defense.spend(contract, party, folder, labels_N, what="a run")
        return defense.secret, ledger.total("labels")

    first = charged_for()
    assert charged_for() == first == (first[0], 1.0)
    for name in ("defense", "drawn"):
        (folder.path / f"{name}.json").unlink()
    second = charged_for()
    assert second == (second[0], 2.0) != first


def test_trials_on_a_union_begin_with_the_same_embeddings_of_real_rows_and_of_stand_ins(tmp_path):
    """If each trial drew stand-ins anew, embeddings that are equal in the first steps of two trials would be real, the others
    made up.
    """
    contract = parse_contract(contract_values(PARTIES, alignment__method="union"))
    frame = tables(PARTIES, rows=100)["shop"]
    party = parse_party({"party": "shop", "table": {"path": "t.parquet"}, **columns(PARTIES)["shop"]}, folder=tmp_path)
    keys = read_keys(frame, columns=party.keys, alignment=contract.alignment)
    rows_N = np.concatenate([np.arange(frame.height), np.full(40, -1)])
    alignment = Alignment(method="union", rows_N=rows_N, sizes={}, learnt=[])
    own = OwnRows(party=party, is_label=False, frame=frame, keys=keys, alignment=alignment)
    folder = RunFolder.new(tmp_path, contract, "shop", key=None)

    def first_embeddings(number):
        trial = folder.trial(number)
        dataset = UnionDataset.of(contract, own, [], secret_seed=trial.secret_seed)
        bottom = replace(Architecture.of(contract, "shop"), seed=start_of(contract, trial)).bottom_model(dataset)
        return bottom(dataset.features_at(torch.arange(len(rows_N))))

    one, other = first_embeddings(1), first_embeddings(2)
    assert torch.equal(one, other)


def test_whatever_holds_the_secret_does_not_show_it():
    secret, none = bytes(range(1, 33)), torch.empty(0)
    contract = parse_contract(contract_values(PARTIES))
    training = contract.training
    holding = (
        replace(Architecture.of(contract, "shop"), seed=secret),
        BranchParts(model=contract.model, party="bank", own=SHAPE, cut_width=4, outputs=1, seed=secret),
        method_of(JPLConfig(method="jpl"), batch_size=1, seed=secret),
        OwnPart(source=None, train_N=none, validation_N=none, training=training, store=None, seed=1, start=secret),
    )
    assert [repr(secret) in repr(each) for each in holding] == [False] * 4


def test_public_starts_are_the_contracts_seed_and_draw_no_secret(tmp_path):
    contract = parse_contract(contract_values(PARTIES, training__starts="public"))
    folder = RunFolder.new(tmp_path, contract, "shop", key=None)
    assert start_of(contract, folder) == contract.seed
    assert not (folder.path / "start.json").exists()


@pytest.mark.parametrize("defense", [{"method": "marvell", "power": 8}, {"method": "quantized-embeddings", "levels": 3}])
def test_a_defence_does_not_go_with_public_starts(defense):
    with pytest.raises(ConfigError, match="starts = public: starting weights reveal what a defence hides"):
        parse_contract(contract_values(PARTIES, training__starts="public", defense=[defense]))


def test_a_union_does_not_go_with_public_starts():
    with pytest.raises(ConfigError, match="starts = public: with public weights a party can repeat the whole training"):
        parse_contract(contract_values(PARTIES, training__starts="public", alignment__method="union"))


def test_every_bit_of_a_secret_counts():
    """A generator that keeps 32 bits could be found by trying them all, because a peer knows what the first weights
    must explain.
    """
    secret = bytes(32)
    drawn = [torch.rand(4, generator=generator_of(bytes([*secret[:place], 1, *secret[place + 1 :]]), "w")) for place in range(32)]
    drawn += [torch.rand(4, generator=generator_of(secret, use)) for use in ("w", "v")]
    assert len({tuple(row.tolist()) for row in drawn}) == 34
    torch.testing.assert_close(
        drawn[32], torch.rand(4, generator=generator_of(secret, "w")), rtol=0, atol=0, msg="one secret and use, one draw"
    )


def test_one_secret_seed_gives_a_simulation_the_same_bits_behind_a_defence_too(tmp_path):
    values = contract_values(PARTIES, defense=[{"method": "marvell", "power": 2.0}], training__epochs=1)
    frames = tables(PARTIES, rows=200)
    for name, seed in (("one", 7), ("same", 7), ("other", 8)):
        simulate(values, frames, columns(PARTIES), watcher=Silent(), folder=tmp_path / name, secret_seed=seed)
    one, same, other = (models(tmp_path / name) for name in ("one", "same", "other"))
    assert len(one) == 2
    assert one == same
    assert not set(one) & set(other)
