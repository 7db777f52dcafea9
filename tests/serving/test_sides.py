"""What a party file may say about serving, depending on who has the clients."""

from types import SimpleNamespace

import pytest

from tallystick.config.contract import parse_contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError, DataError, PeerLost
from tallystick.serving import side
from tallystick.serving.side import ServingSide, check_serving

CLIENTS = {"listen": "127.0.0.1:8443", "token_file": "tokens"}
STORE = {"store": {"method": "redis", "url": "redis://localhost:6379/0"}}


def checked(folder, name, ways, *, method="intersection", **serving):
    contract = parse_contract(
        {
            "name": "served",
            "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
            "alignment": {"method": method, "keys": [{"name": "id"}]},
            "serving": {"ways": ways},
        }
    )
    values = {
        "party": name,
        "table": {"path": folder / "t.parquet"},
        "keys": {"id": "id"},
        "tls": {part: folder / f"{part}.pem" for part in ("ca", "certificate", "key")},
        "serving": {key: folder / value if key == "token_file" else value for key, value in serving.items()},
        **({"label": "y"} if name == "bank" else {}),
    }
    check_serving(contract, PartyFile.model_validate(values))


def test_whoever_asks_has_the_clients_and_the_other_side_has_none(tmp_path):
    for ways, asks, other in ((["key"], "bank", "shop"), (["embedding"], "shop", "bank"), (["agreed-batch"], "shop", "bank")):
        checked(tmp_path, asks, ways, **CLIENTS)
        checked(tmp_path, other, ways)
        with pytest.raises(ConfigError, match=f"serving.listen: is missing; {asks} answers clients there"):
            checked(tmp_path, asks, ways)
        with pytest.raises(ConfigError, match=f"serving.deadline_ms: by {ways[0]} only {asks} answers clients; leave it out"):
            checked(tmp_path, other, ways, deadline_ms=5.0)


def test_a_way_that_the_contract_does_not_allow_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"serving\.way = window: the contract allows key, position"):
        checked(tmp_path, "bank", ["key", "position"], way="window", **CLIENTS)


@pytest.mark.parametrize(
    ("name", "ways", "method", "refused"),
    [
        ("shop", ["key"], "intersection", False),
        ("shop", ["ahead"], "union", True),
        ("shop", ["embedding"], "union", False),
        ("shop", ["agreed-batch"], "intersection", True),
        ("bank", ["agreed-batch"], "union", True),
    ],
)
def test_a_store_is_refused_where_rows_are_those_of_the_table(tmp_path, name, ways, method, refused):
    clients = CLIENTS if name == "shop" and ways != ["key"] and ways != ["ahead"] else {}
    if not refused:
        checked(tmp_path, name, ways, method=method, **clients, **STORE)
        return
    with pytest.raises(ConfigError, match=f"serving.store: by {ways[0]} rows of {name} are those of its table"):
        checked(tmp_path, name, ways, method=method, **clients, **STORE)


@pytest.mark.parametrize(
    ("errors", "rounds"),
    [
        ([DataError("the tables do not go together")], 1),
        ([PeerLost("shop", "gone"), DataError("shop has 0 ids"), PeerLost("shop", "gone"), ConfigError("a certificate")], 4),
        ([TypeError("a defect of ours"), DataError("shop has 0 ids"), ConfigError("a certificate")], 3),
    ],
)
def test_a_partner_that_brings_another_table_ends_nobodys_service(monkeypatch, errors, rounds):
    left, said, stopped = list(errors), [], side.Stop()

    def session(_contract, _party, _work, *, watcher, opened):
        if not left:
            stopped.set()  # a round too many is counted, and ends
            raise PeerLost("shop", "gone")
        raise left.pop(0)

    monkeypatch.setattr(side, "with_sessions", session)
    monkeypatch.setattr(side, "AGAIN_S", 0.0)
    monkeypatch.setattr(side.gc, "freeze", lambda: None)
    network = SimpleNamespace(model_copy=lambda update: update)
    one = SimpleNamespace(
        party=SimpleNamespace(threads=1),
        contract=SimpleNamespace(network=network, model_copy=lambda update: update),
        watcher=SimpleNamespace(say=said.append),
    )
    with pytest.raises(type(errors[-1]), match=str(errors[-1])):
        ServingSide.in_rounds(one, None, stopped=stopped)
    assert len(errors) - len(left) == rounds
    assert len(said) == rounds - 1
