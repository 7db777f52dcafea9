"""Compare the table of disclosures with what crosses: every field of every message is in it, and a run names all that crossed."""

import asyncio
import importlib
import pkgutil
import shutil
import threading
from collections import defaultdict

import pytest
import similar
import tiny
from httpx import ASGITransport, AsyncClient
from lanes import short_lane_of
from sides import PARTIES, Sides
from tiny import files_of, within

import tallystick
from tallystick.config.contract import parse_contract
from tallystick.disclosure.alignment import ALIGNMENT
from tallystick.disclosure.serving import SERVING
from tallystick.disclosure.table import DISCLOSURES, disclosure_lines
from tallystick.network.channel import MemoryChannel
from tallystick.network.messages import Message
from tallystick.serving import feature_party_asks
from tallystick.serving import label_party as online_label_party
from tallystick.serving.feature_party import serve_feature_party
from tallystick.serving.feature_party_asks import serve_feature_party_that_asks, serve_label_party_that_answers
from tallystick.serving.label_party import serve_label_party
from tallystick.simulation import simulate
from tallystick.watcher import Silent

TWO, THREE = ("bank", "shop"), ("bank", "club", "shop")
KEYS = [{"name": "id"}]
UNION = {"union__labels": "sampling", "union__features": "sampling"}
CASES = {
    "default": (TWO, {"training__validations": "auto", "evaluation__importance": {}}),
    "three parties": (THREE, {}),
    "label dp": (TWO, {"defense": [{"method": "label-dp", "epsilon": 1.0}]}),
    "no gradients": (TWO, {"training__gradients": "none"}),
    "Diffie-Hellman": (TWO, {"alignment__protocol": "diffie-hellman"}),
    "oblivious transfer": (TWO, {"alignment__protocol": "oblivious-transfer"}),
    "malicious": (TWO, {"alignment__security": "malicious"}),
    "malicious, three parties": (THREE, {"alignment__security": "malicious"}),
    "repeated ids": (TWO, {"alignment__duplicates": "all"}),
    "by time": (TWO, {"split": {"method": "time", "validation": 0.1, "test": 0.2}}),
    "folds": (TWO, {"training__folds": 3}),
    "private AUC": (TWO, {"evaluation__privacy": {"epsilon": 1.0}}),
    "metrics": (TWO, {"evaluation__share_metrics": ["auc"]}),
    "importance": (TWO, {"evaluation__importance__feature_columns": "both", "evaluation__importance__rows": 20}),
    "union": (TWO, {"alignment__method": "union", "alignment__protocol": "diffie-hellman"}),
    "union by switching": (TWO, {"alignment__method": "union", "alignment__protocol": "oblivious-transfer"}),
    "unaligned rows": (TWO, {"unaligned__method": "regressor", "unaligned__joint_epochs": 1}),
}


def message_types():
    """Return every message type of the library, by its name."""
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    pending, kinds = [Message], {}
    while pending:
        for kind in pending.pop().__subclasses__():
            pending.append(kind)
            if kind.__module__.startswith("tallystick."):
                kinds[kind.__name__] = kind
    return kinds


def test_every_field_of_every_message_stands_in_the_table_and_no_other():
    fields = {
        f"{name}.{field}" if field else name
        for name, kind in message_types().items()
        for field in (kind.__struct_fields__ or ("",))
    }
    listed = {field for row in DISCLOSURES for field in row.fields}
    assert fields - listed == set(), "fields that no row of the table of disclosures has"
    assert listed - fields == set(), "fields that no message has"


@pytest.fixture
def crossed(monkeypatch):
    """Return the types of messages that each party receives."""
    received, send = defaultdict(set), MemoryChannel.send

    def noted(channel, message):
        received[channel.peer].add(type(message).__name__)
        send(channel, message)

    monkeypatch.setattr(MemoryChannel, "send", noted)
    return received


def rows_of(name):
    """Return the rows of the table under which a message type crosses in a run. Later commands have rows of their own."""
    run = [row for row in DISCLOSURES if row not in SERVING]
    return [row for row in run if any(field.split(".")[0] == name for field in row.fields)]


def check_said(contract, received, result):
    """Each type that crossed is announced before the run by a row of its own, and named after it in what was learnt."""
    lines = disclosure_lines(contract, own_columns=None)
    for name in set().union(*received.values()):
        said = [line for row in rows_of(name) for line in row.sentences(contract)]
        assert said, f"{name} crossed, and check does not say so"
        assert set(said) <= set(lines)
    facts = " ".join(item.what for item in result.learnt)
    assert ("cut gradient" in facts and "labels can be estimated" in facts) == ("CutGradient" in set().union(*received.values()))
    assert "embedding" in facts


@pytest.mark.parametrize("case", short_lane_of(CASES, 7))
def test_what_crosses_in_a_run_is_said_before_it_and_after_it(case, crossed):
    parties, changes = CASES[case]
    contract = parse_contract(tiny.contract_values(parties, **{"training__epochs": 1, **changes}))
    columns = tiny.columns(parties)
    if contract.split.method == "time":
        columns["bank"]["time"] = "day"
    result = simulate(contract, tiny.tables(parties, rows=200), columns)
    check_said(contract, crossed, result)


def test_what_crosses_when_rows_are_linked_is_said(crossed):
    contract = parse_contract(similar.contract_values(("bank", "shop"), training__epochs=1))
    tables = similar.tables(("bank", "shop"), rows=100, places=40)
    check_said(contract, crossed, simulate(contract, tables, similar.columns(("bank", "shop"))))


class Served(Sides):
    """Let both sides serve on disk until a client has asked for a row and the label party has told of versions."""

    def __init__(self, root, patch, frames, **changes):
        super().__init__(root, patch, frames, **changes)
        contract, _ = files_of(self.job, "bank")
        self.asks, self.codes = "shop" if contract.serving is not None and contract.serving.feature_party_asks else "bank", []
        self.job.change("bank", weight=None, serving=None)
        if self.asks == "shop":
            shutil.copy(self.job.home("bank") / "tokens", self.job.home("shop"))
        if contract.serving is not None:
            self.job.change(self.asks, serving={**self.options, "deadline_ms": 60_000.0})  # enough for a busy machine
        for module in (online_label_party, feature_party_asks):
            patch.setattr(module, "answer_clients", self.with_a_client)

    def with_a_client(self, _side, server, score, *, stopped):
        key = GIVEN["bank"].join(GIVEN["shop"], on="id", how="semi")["id"][0]
        headers = {"authorization": f"Bearer {(self.job.home('bank') / 'tokens').read_text().strip()}"}

        def code(method, path, **options):
            async def request():
                async with AsyncClient(transport=ASGITransport(app=server.config.app), base_url="http://bank") as client:
                    return (await client.request(method, path, headers=headers, **options)).status_code

            return asyncio.run(request())

        def ask():
            within(60, lambda: code("GET", "/readyz") == 200)
            self.codes.append(code("POST", "/v1/score", json={"rows": [{"id": key}]}))
            within(60, lambda: self.asks == "shop" or any(kind == "VersionsHeld" for kind, _ in self.told))
            stopped.set()

        threading.Thread(target=ask, daemon=True).start()
        score()

    def serve(self):
        roles = (serve_label_party, serve_feature_party)
        if self.asks == "shop":
            roles = (serve_label_party_that_answers, serve_feature_party_that_asks)

        def work(name):
            roles[PARTIES.index(name)](*files_of(self.job, name), table=None, run=None, watcher=Silent())

        return self.step("serve", work)


GIVEN = tiny.tables(TWO, rows=160)
BARE = {"union": {"features": "sampling"}, "alignment__method": "union"}
LATER = {
    "predict": {},
    "predict, union": BARE,
    **{f"serve by {way}": {"serving": {"ways": [way]}} for way in ("key", "window", "ahead", "embedding")},
    "serve by agreed-batch, union": {"serving": {"ways": ["agreed-batch"]}, **BARE},
}


@pytest.mark.parametrize("case", LATER)
def test_what_crosses_when_rows_are_scored_is_said_before(case, tmp_path, monkeypatch):
    """Each field that crosses has a row whose sentences `check` shows, for the command, its handshake or its alignment."""
    sides = Served(tmp_path, monkeypatch, GIVEN, **{"training__epochs": 1, "serving": None, **LATER[case]})
    if case == "serve by embedding":
        sides.job.change("bank", features={"numeric": [], "categorical": []})
    contract, _ = files_of(sides.job, "bank")
    assert sides.run() is None
    command = case.partition(" ")[0].strip(",")
    assert (sides.serve() if command == "serve" else sides.predict()) is None
    assert sides.codes == ([200] if command == "serve" else [])
    lines, types = disclosure_lines(contract, own_columns=None), message_types()
    later = [row for row in SERVING if row.name.startswith({"serve": ("serving", "promotion"), "predict": "prediction"}[command])]
    crossed = {kind for kind, _ in (*sides.sent, *sides.told)}
    assert {"serve": {"WayOfAsking"}, "predict": {"CutEmbedding"}}[command] <= crossed
    for name in crossed:
        for field in types[name].__struct_fields__ or ("",):
            whole = f"{name}.{field}" if field else name
            rows = [row for row in (*ALIGNMENT, *later) if whole in row.fields]
            said = [line for row in rows for line in row.sentences(contract)]
            assert said, f"{whole} crossed, and check does not say so"
            assert set(said) <= set(lines)
    own = [line for row in later for line in row.sentences(contract) if line.startswith(f"`tallystick {command}`")]
    assert own


def test_a_contract_without_a_defence_says_that_gradients_tell_labels_and_columns():
    """This is the document that people sign."""
    lines = disclosure_lines(parse_contract(tiny.contract_values(TWO)), own_columns=None)
    (gradient,) = [line for line in lines if "to shop: a cut gradient per training row and epoch" in line]
    assert "attacks read the label off it" in gradient
    assert "no formal guarantee" in gradient
    assert any("to shop: cut gradients also tell something about the columns of bank" in line for line in lines)
