"""Versions are switched under load: each answer has the bits of the one run that it names, and none is missing."""

import secrets
from contextlib import contextmanager
from functools import partial

import numpy as np
import polars as pl
import pytest
from serving_job import Served, clients, files, in_threads, promote, versions
from test_serve import bits
from tiny import contract_values, lay_out, within

from tallystick import predict
from tallystick.job.process import run_process
from tallystick.job.run_selection import complete_ids, named_run
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
JOINT = "joint model"
LESS = {"evaluation__bootstrap": 0}


def predict_with(job, run_id, output, name):
    home = job.home(name)
    own = output if name == "bank" else None
    predict(home / "contract.yaml", home / "party.yaml", output=own, run=run_id, watcher=Silent())


@pytest.fixture(scope="module")
def trained_thrice(tmp_path_factory):
    """Make three runs of one job, the oldest first, and return what `predict` says of all rows by each."""
    more = {**LESS, "unaligned": {"method": "multi-task"}}
    serving = {"ways": ["key", "position", "window", "ahead"], "window": 8}
    values = contract_values(PARTIES, training__epochs=1, training__starts="secret", serving=serving, **more)
    job = lay_out(tmp_path_factory.mktemp("switched"), PARTIES, values, rows=250)
    for _ in range(3):
        in_threads(job, lambda name: run_process(*files(job, name), watcher=Silent()))
    runs = complete_ids(*files(job, "bank"))[::-1]
    expected = {}
    for run_id in runs:
        output = job.home("bank") / f"{run_id}.parquet"
        in_threads(job, partial(predict_with, job, run_id, output))
        found = pl.read_parquet(output)
        expected[run_id] = dict(zip(found["id"], zip(found["score"], found["scored_by"], strict=True), strict=True))
    assert len({tuple(found.values()) for found in expected.values()}) == 3
    yield job, runs, expected
    for party in job.started:
        party.close()


@pytest.fixture
def fresh(trained_thrice):
    """Promote the oldest run on both sides, and nothing else."""
    job, runs, expected = trained_thrice
    for name in PARTIES:
        versions(job, name).path.unlink(missing_ok=True)
    promote(job, runs[0])
    return job, runs, expected


@contextmanager
def load(served, expected, *, threads=3):
    """Ask all the time, for one row or for many, with own columns or without. Collect (status, run, scored by, whether right)."""
    keys = list(next(iter(expected.values())))
    table = pl.read_parquet(served.job.home("bank") / "table.parquet").select("id", "x", "noise", "kind")
    own = {row["id"]: row for row in table.to_dicts()}
    came = []

    def ask(client, seed, over):
        rng = np.random.default_rng(seed)
        while not over.wait(0.03):  # often enough to meet each switch, and cheap
            asked = rng.choice(keys, size=rng.choice([1, 1, 1, 5, 40])).tolist()
            rows = [own[key] for key in asked] if rng.integers(2) else [{"id": key} for key in asked]
            response = client.post("/v1/score", json={"rows": rows})
            if response.status_code != 200:
                came.append((response.status_code, None, response.text, False))
                continue
            body = response.json()
            for key, row in zip(asked, body["scores"], strict=True):
                score, by = expected[body["run_id"]][key]
                is_right = by != row["scored_by"] or bits([score]) == bits([row["score"]])
                came.append((200, body["run_id"], row["scored_by"], is_right))

    with clients(served, threads, ask):
        yield came


def scored_by_run(came, run_id, seconds=60):
    """Wait until some more answers are all by this run's joint model."""
    before = len(came)
    return within(
        seconds,
        lambda: (
            len(came) > before + 50
            and all(run == run_id for _, run, _, _ in came[-40:])
            and any(by == JOINT for _, _, by, _ in came[-40:])
        ),
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "way", ["key", pytest.param("window", marks=pytest.mark.long), pytest.param("ahead", marks=pytest.mark.long)]
)
def test_versions_are_switched_under_load_and_each_answer_is_one_runs(fresh, way):
    job, (old, new, _), expected = fresh
    served = Served(job, way=way, deadline_ms=5000.0)
    try:
        served.start().until_ready()
        with load(served, expected) as came:
            assert scored_by_run(came, old)
            versions(job, "bank").promote(new)
            assert within(30, lambda: served.client.get("/v1/runs").json()["waiting"] == [{"run_id": new, "missing": ["shop"]}])
            assert served.ask({"id": "x"}, run_id=new).status_code == 409
            assert scored_by_run(came, old)  # one side alone brings nothing into use
            versions(job, "shop").promote(new)
            assert scored_by_run(came, new)
            versions(job, "shop").roll_back()
            assert scored_by_run(came, old)
            versions(job, "shop").promote(new)
            assert scored_by_run(came, new)
        assert {status for status, *_ in came} == {200}, [found for found in came if found[0] != 200][:3]
        assert all(is_right for *_, is_right in came)
        assert {run for _, run, by, _ in came if by == JOINT} == {old, new}
        lines = [
            line for path in (job.home("shop") / "runs").glob("serving/*/*/*.jsonl") for line in path.read_text().splitlines()
        ]
        assert all(any(run_id in line for line in lines) for run_id in (old, new))
    finally:
        served.close()


@pytest.mark.long
def test_a_candidate_is_scored_beside_and_answers_nobody(fresh):
    job, (old, _, candidate), expected = fresh
    served = Served(job, way="key", deadline_ms=5000.0, shadow={"share": 1.0})
    for name in PARTIES:
        versions(job, name).name_candidate(candidate)
    pairs = [(expected[old][key], expected[candidate][key]) for key in expected[old]]
    joint = [(one[0], other[0]) for one, other in pairs if one[1] == JOINT]
    changed = sum((one >= 0.5) != (other >= 0.5) for one, other in joint)

    def figure(name):
        lines = served.client.get("/metrics").text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)

    try:
        served.start().until_ready()
        assert within(
            30,
            lambda: {"run_id": candidate, "state": "candidate", "answers": False} in served.client.get("/v1/runs").json()["runs"],
        )
        assert served.ask({"id": "x"}, run_id=candidate).status_code == 409
        keys = list(expected[old])
        for start in range(0, len(keys), 50):
            body = served.ask(*[{"id": key} for key in keys[start : start + 50]]).json()
            assert body["run_id"] == old
        compared = f'tallystick_shadow_rows_total{{candidate="{candidate}",outcome="compared"}}'
        assert within(20, lambda: figure(compared) == len(joint))
        total = sum(abs(one - other) for one, other in joint)
        assert figure(f'tallystick_shadow_difference_sum{{candidate="{candidate}"}}') == pytest.approx(total, rel=1e-4)
        assert figure(f'tallystick_shadow_changed_rows_total{{candidate="{candidate}"}}') == changed
        lines = [
            line for path in (job.home("shop") / "runs").glob("serving/*/*/*.jsonl") for line in path.read_text().splitlines()
        ]
        assert any(candidate in line for line in lines)  # the budgets count it
        for name in PARTIES:
            versions(job, name).promote(candidate)
        assert within(30, lambda: served.ask({"id": keys[0]}).json()["run_id"] == candidate)
    finally:
        served.close()


@pytest.mark.long
def test_a_side_that_is_killed_in_the_middle_of_a_switch_comes_back_to_one_run(fresh):
    job, (old, new, _), expected = fresh
    served = Served(job, way="key", deadline_ms=1000.0)
    try:
        served.start().until_ready()
        with load(served, expected) as came:
            assert scored_by_run(came, old)
            promote(job, new)
            served.running["shop"].kill()
            versions(job, "bank").roll_back()  # while the shop is down, the label party goes back
            served.start("shop")
            assert scored_by_run(came, old, 120)
            versions(job, "bank").promote(new)
            served.running["shop"].wait_for(lambda event: f"run {new} scores" in str(event), 60)
            served.running["shop"].kill()
            served.start("shop")
            assert scored_by_run(came, new, 120)
        assert {status for status, *_ in came} == {200}, [found for found in came if found[0] != 200][:3]
        assert all(is_right for *_, is_right in came)
    finally:
        served.close()


@pytest.mark.long
def test_after_ten_switches_no_more_runs_are_loaded_than_three(fresh):
    job, runs, _ = fresh
    served = Served(job, way="key", deadline_ms=5000.0)

    def run_of(key):
        return served.ask({"id": key}).json()["run_id"]

    try:
        served.start().until_ready()
        for number in range(1, 11):
            promote(job, runs[number % 3])
            assert within(30, lambda wanted=runs[number % 3]: run_of("id-000001") == wanted)
            assert len(served.client.get("/v1/runs").json()["runs"]) <= 3
    finally:
        served.close()


@pytest.mark.long
def test_promotions_and_folders_that_are_damaged_while_they_are_served_change_nothing(fresh):
    job, (old, new, _), expected = fresh
    served = Served(job, way="key", deadline_ms=5000.0)
    key = next(iter(expected[old]))
    folder = named_run(*files(job, "shop"), old).path
    away = folder.with_name("away")
    path = versions(job, "bank").path
    content = path.read_bytes()
    try:
        served.start().until_ready()
        path.write_bytes(content[:20])
        served.running["bank"].wait_for(lambda event: "versions stay as they are" in str(event), 30)
        folder.rename(away)
        assert served.ask({"id": key}).json()["run_id"] == old
        path.write_bytes(content)
        promote(job, new)
        assert within(30, lambda: served.ask({"id": key}).json()["run_id"] == new)
    finally:
        served.close()
        away.rename(folder)


@pytest.mark.long
def test_encrypted_run_folders_are_switched_too_and_a_second_server_of_a_party_is_refused(tmp_path):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES, training__epochs=1, serving={"ways": ["key"]}, **LESS), rows=200)
    for name in PARTIES:
        (job.home(name) / "key").write_text(f"{secrets.token_hex(32)}\n")
        job.change(name, encryption={"key": {"file": "key"}})
    for _ in range(2):
        in_threads(job, lambda name: run_process(*files(job, name), watcher=Silent()))
    old, new = complete_ids(*files(job, "bank"))[::-1]
    promote(job, old)
    served = Served(job, way="key", deadline_ms=5000.0)
    ids = pl.read_parquet(job.home("shop") / "table.parquet")["id"].to_list()
    key = next(key for key in pl.read_parquet(job.home("bank") / "table.parquet")["id"] if key in ids)
    try:
        served.start().until_ready()
        for name, says in (("bank", "is the port taken"), ("shop", "serves this contract for this party already")):
            second = job.start(name, "serve", json=False)
            assert second.end() == 2
            assert says in second.error
        promote(job, new)
        assert within(60, lambda: served.ask({"id": key}).json()["run_id"] == new)
        written = [path.read_bytes() for path in (job.home("shop") / "runs").glob("serving/*/*/*.json*")]
        assert written
        assert not any(word in content for content in written for word in (b"secret", new.encode()))
    finally:
        served.close()
