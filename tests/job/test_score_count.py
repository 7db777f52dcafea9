"""How scores of a row are counted, and which shares are opened: over copies of a folder, names, processes and kills."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tiny import columns, contract_values

from tallystick.alignment.ids import Ids
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import StorageError
from tallystick.job.phases.shared_head import DueScores
from tallystick.network.channel import memory_channels
from tallystick.privacy.ledger import BudgetExceeded
from tallystick.run_folder import score_count
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger
from tallystick.run_folder.score_count import count_scores, refuse_scores
from tallystick.run_folder.shared_head import keep_score_shares, shares_path

PARTIES = ("bank", "shop")
CONTRACT = parse_contract(contract_values(PARTIES))
IDS = Ids.of([b"a", b"b", b"c"])


def party_in(root, *, name="shop", **privacy):
    values = {**columns(PARTIES)["shop"], "party": name, "table": {"path": "table.parquet"}, "privacy": privacy}
    return parse_party(values, folder=root)


@pytest.fixture
def party(tmp_path):
    """Make a feature party that allows one score of a row, with a ledger."""
    create_ledger(party_in(tmp_path))
    return party_in(tmp_path, scores_per_row=1)


def folder_in(party):
    return RunFolder.new(party.runs, CONTRACT, party.party, key=None)


def keep_fresh(folder, ids=IDS):
    """Keep shares as a session leaves them: different ones at each call, except with a chance of 2^-64 a row."""
    keep_score_shares(folder, ids, np.random.default_rng().integers(0, 2**64, (len(ids), 1), dtype=np.uint64))
    return shares_path(folder, ids)


def open_fresh(party, folder, contract=CONTRACT):
    count_scores(party, folder, IDS, contract, shares=keep_fresh(folder))


def test_the_same_shares_count_once(party):
    folder = folder_in(party)
    open_fresh(party, folder)
    count_scores(party, folder, IDS, CONTRACT, shares=shares_path(folder, IDS))
    refuse_scores(party, IDS, CONTRACT, folder=folder)


def test_a_copy_of_a_trained_folder_opens_no_second_score(party):
    # By the same head: with other columns of the label party the score would differ
    folder = folder_in(party)
    folder.start_secret()
    copy = RunFolder.open(shutil.copytree(folder.path, folder.path.with_name(f"{folder.path.name}-copy")))
    open_fresh(party, folder)
    with pytest.raises(BudgetExceeded, match="up to 2 scores"):
        open_fresh(party, copy)
    shares_path(copy, IDS).unlink()
    with pytest.raises(BudgetExceeded, match="up to 2 scores"):  # before anybody is told of it
        refuse_scores(party, IDS, CONTRACT, folder=copy)


def test_another_name_of_the_party_opens_no_second_score(party, tmp_path):
    # A contract names the parties: another label party may use another name for it
    open_fresh(party, folder_in(party))
    other = party_in(tmp_path, name="supplier", scores_per_row=1)
    with pytest.raises(BudgetExceeded, match="up to 2 scores"):
        refuse_scores(other, IDS, CONTRACT, folder=None)
    with pytest.raises(BudgetExceeded, match="up to 2 scores"):
        open_fresh(other, folder_in(other))


def test_a_contract_of_another_key_opens_no_second_score(party):
    # Under another key, or in another spelling, the same rows have other ids
    open_fresh(party, folder_in(party))
    keys = {"method": "intersection", "keys": [{"name": "id", "normalise": ["trim", "lower"]}]}
    spelt = parse_contract(contract_values(PARTIES, alignment=keys))
    assert spelt.alignment.keys != CONTRACT.alignment.keys
    with pytest.raises(BudgetExceeded, match="agree on the same key"):
        refuse_scores(party, Ids.of([b"A"]), spelt, folder=None)
    with pytest.raises(BudgetExceeded, match="agree on the same key"):
        open_fresh(party, folder_in(party), spelt)


def test_of_runs_at_once_one_opens_scores(party, monkeypatch):
    # Each looks at the ledger before any of them enters its scores
    digest, waiting = score_count._digest_of, []

    def late(path):
        waiting.append(path)
        while len(waiting) < 4:
            pass
        return digest(path)

    folders = [folder_in(party) for _ in range(4)]
    for folder in folders:
        keep_fresh(folder)
    monkeypatch.setattr(score_count, "_digest_of", late)

    def opens(folder):
        try:
            count_scores(party, folder, IDS, CONTRACT, shares=shares_path(folder, IDS))
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(opens, folders)) == 1


def test_no_score_goes_uncounted_while_a_ledger_is_away(party, tmp_path):
    # No bound is set now, but the party file names the ledger, which a later bound will count by
    identity = score_count.known_ledger(party).identity
    unbounded = party_in(tmp_path, identity=identity)
    folder = folder_in(unbounded)
    unbounded.privacy.ledger.rename(tmp_path / "away.sqlite")
    with pytest.raises(StorageError, match="is gone"):
        refuse_scores(unbounded, IDS, CONTRACT, folder=folder)
    with pytest.raises(StorageError, match="is gone"):
        open_fresh(unbounded, folder)


@pytest.mark.parametrize("names", [PARTIES, ("bank", "club", "shop")])
def test_shares_of_a_session_that_one_party_lost_are_never_opened_beside_those_of_the_next(names, tmp_path):
    # Killed twice: shop keeps shares of the first session, others of the second. Their sum would be noise that looks like scores.
    contract = parse_contract(contract_values(names))
    parties = {name: party_in(tmp_path / name, name=name) for name in names}
    due = {name: DueScores(folder=folder_in(each), party=each, ids=IDS, contract=contract) for name, each in parties.items()}
    channels = {name: memory_channels("bank", name, timeout_s=10) for name in names[1:]}
    peers = {"bank": [of_bank for of_bank, _ in channels.values()], **{name: [own] for name, (_, own) in channels.items()}}

    def kept_by_all():
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(lambda name: due[name].kept_by_all(peers[name]), names))

    keep_fresh(due["shop"].folder)
    assert not any(kept_by_all())
    for name in names[:-1]:
        keep_fresh(due[name].folder)
    assert not any(kept_by_all())
    for each in due.values():
        keep_fresh(each.folder)
    assert all(kept_by_all())
