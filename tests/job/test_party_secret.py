"""The secret from which a party's noise follows: it never changes, is its own, and runs and tables depend on it as they
should.
"""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
from tiny import columns, contract_values, tables, weights

from tallystick.alignment.ids import Ids
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import DamagedFile
from tallystick.privacy.events import GaussianDP
from tallystick.privacy.ledger import Ledger
from tallystick.run_folder.noise_secret import noise_secret, row_noise_secret
from tallystick.simulation import simulate
from tallystick.tables.encoder import Encoder
from tallystick.tables.keys import Keys

PARTIES = ("bank", "shop")
NOISE = {"method": "gaussian-embeddings", "epsilon": 2.0, "delta": 1e-6, "clip": 1.0}
NOISY = parse_contract(contract_values(PARTIES, defense=[NOISE]))


def shop(folder):
    values = {"party": "shop", "table": {"path": "t.parquet"}, "privacy": {"ledger": "ledger.sqlite"}}
    if not (folder / "ledger.sqlite").exists():
        Ledger.create(folder / "ledger.sqlite", party="shop")
    return parse_party(values, folder=folder)


def test_the_secret_is_made_once_and_is_the_owners_alone(tmp_path):
    party = shop(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: noise_secret(party), range(32)))
    assert len(found) == 1
    assert len(found.pop()) == 32
    (path,) = tmp_path.glob("*.json")
    assert (path.name, path.stat().st_mode & 0o777) == ("ledger.noise.json", 0o600)
    path.write_bytes(path.read_bytes().replace(b"secret", b"Secret"))
    with pytest.raises(DamagedFile, match=r"ledger\.noise\.json.* put back a copy\. Without a copy"):
        noise_secret(party)


def test_a_secret_that_is_gone_is_not_drawn_anew_and_another_is_not_taken_for_it(tmp_path):
    """Each new secret would be one more release of the same rows, which could be averaged with earlier ones, and no
    line said so.
    """
    (tmp_path / "other").mkdir()
    party, other = shop(tmp_path), shop(tmp_path / "other")
    first, foreign = noise_secret(party), noise_secret(other)
    path, foreign_path = (each.privacy.ledger.with_suffix(".noise.json") for each in (party, other))
    kept = path.read_bytes()
    path.write_bytes(foreign_path.read_bytes())  # sealed, and complete
    with pytest.raises(DamagedFile, match=r"it is not the secret that the noise charged to .*ledger\.sqlite follows from"):
        noise_secret(party)
    path.unlink()
    with pytest.raises(DamagedFile, match=r"it is missing.* begin with a new ledger"):
        noise_secret(party)
    assert not path.exists()
    path.write_bytes(kept)
    assert noise_secret(party) == first != foreign
    assert Ledger(party.privacy.ledger, party="shop").entries() == []


@pytest.mark.parametrize("of", ["-keys", "-embeddings"])
def test_a_ledger_that_knows_no_digest_and_holds_noise_has_no_new_secret_made(tmp_path, of):
    """A newly drawn secret would be one more release of the same rows."""
    party = shop(tmp_path)
    secret, ledger = noise_secret(party), Ledger(party.privacy.ledger, party="shop")
    ledger.spend(f"{party.privacy.dataset}{of}", GaussianDP(noise_multiplier=3.0, unit="record"), what="a run")
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("DROP TABLE bound")
    assert noise_secret(party) == secret  # and is bound now
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("DROP TABLE bound")
    ledger.path.with_suffix(".noise.json").unlink()
    with pytest.raises(DamagedFile, match=r"it is missing, and .* holds 1 entries of noise .* begin with a new ledger"):
        noise_secret(party)
    assert not ledger.path.with_suffix(".noise.json").exists()


def test_only_a_feature_party_with_noise_has_one(tmp_path):
    quantized = parse_contract(contract_values(PARTIES, defense=[{"method": "quantized-embeddings", "levels": 5}]))
    assert row_noise_secret(quantized, shop(tmp_path)) is None
    assert not list(tmp_path.glob("*.json"))
    assert row_noise_secret(NOISY, shop(tmp_path)) == noise_secret(shop(tmp_path))


def test_a_retrained_run_sends_the_same_embeddings_again(tmp_path):
    """Every step has noise, so weights that are the same to the bit had the same noise."""
    for _ in range(2):
        simulate(contract_values(PARTIES, defense=[NOISE]), tables(PARTIES, rows=150), columns(PARTIES), folder=tmp_path)
    for party in PARTIES:
        first, second = sorted((tmp_path / party).glob("tiny-*/model.safetensors"))
        assert weights(first) == weights(second)


def test_a_row_is_known_by_its_id_in_another_table_and_at_another_place():
    def named(order, similar=None):
        frame = pl.DataFrame({"x": [float(each) for each in order]})
        ids = Ids.of([b"id %d" % each for each in order])
        rows = np.arange(len(order))
        keys = Keys(ids=ids, rows_R=rows, id_R=rows, report=None, similar=similar)
        own = OwnRows(party=None, is_label=False, frame=frame, keys=keys, alignment=None)
        encoder = Encoder(numeric=(), categorical=())
        return own.named(encoder.encode(frame), np.arange(len(order)), NOISY).who_M.tolist()

    here, there = named(range(6)), named([4, 2, 9, 0])
    assert there == [here[4], here[2], there[2], here[0]]
    assert len({*here, *there}) == 7
    assert min(here) >= 0  # below are the positions of stand-ins
    places = SimilarKeys(numbers_RD=np.array([[1.0], [2.0]]))
    assert named([0, 1], places) == named([0, 1], places) != named([0, 1], places.with_numbers(np.array([[1.0], [3.0]])))
