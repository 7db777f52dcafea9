"""`tallystick overlap`: two processes count common ids as the contract says, and no more often.

If a test does not ask what the light install can do, it forks them from a process that has loaded everything.
"""

import polars as pl
import pytest
from test_without_pytorch import PARTIES, both, ends_of, of_csv, start
from tiny import contract_values, files_of, lay_out

from tallystick.check import check_party_file
from tallystick.config.contract import parse_contract
from tallystick.config.party import load_party
from tallystick.disclosure.table import disclosure_lines
from tallystick.errors import ConfigError, DataError
from tallystick.job.overlap import _require_allowed, run_overlap
from tallystick.privacy.ledger import BudgetExceeded
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.ledger import create_ledger, known_ledger
from tallystick.watcher import Silent


@pytest.fixture
def counted(tmp_path):
    jobs = []

    def lay(rows=300, **overlap):
        jobs.append(lay_out(tmp_path, PARTIES, contract_values(PARTIES, overlap=overlap), rows=rows))
        return jobs[-1]

    yield lay
    for job in jobs:
        for party in job.started:
            party.close()


def count(job):
    """Return each party's exit code, its JSON and its standard error."""
    running = job.start_all("overlap")
    return {party: (one.end(), one.found, one.said) for party, one in running.items()}


def error_of_one(job, party):
    """Return what a party is told that nobody joins."""
    one = job.start(party, "overlap")
    assert one.end() != 0
    return one.found["error"]["message"]


def ids_of(job):
    return [set(pl.read_parquet(job.home(party) / "table.parquet")["id"]) for party in PARTIES]


def codes(ends):
    return [code for code, _, _ in ends.values()]


def test_both_are_told_how_many_are_common_once(counted):
    job = counted(least=5)
    bank, shop = ids_of(job)
    ends = count(job)
    assert codes(ends) == [0, 0], ends
    for (_, facts, _), own, others in zip(ends.values(), (bank, shop), (shop, bank), strict=True):
        assert (facts["common"], facts["own"], facts["others"]) == (len(bank & shop), len(own), len(others))
        assert facts["learnt"][-1] == f"{len(bank & shop):,} ids are common."
    again = count(job)
    assert codes(again) == [2, 2]
    assert all("overlap.answers = 1" in facts["error"]["message"] for _, facts, _ in again.values())


def test_of_two_counts_at_once_not_both_are_made(counted):
    """Each process looks for other counts before it calls, and again after it has recorded its own."""
    contract, party = files_of(counted(least=5), "shop")
    _require_allowed(contract.overlap, party, "bank")
    folders = [RunFolder.new(party.runs, contract, party.party, use="overlap", key=None) for _ in range(2)]
    folders[0].note("overlap", {"peer": "bank", "exact": True})
    _require_allowed(contract.overlap, party, "bank", beside=folders[0])
    folders[1].note("overlap", {"peer": "bank", "exact": True})
    with pytest.raises(ConfigError, match=r"overlap.answers = 1: .* has 1 exact count with bank already"):
        _require_allowed(contract.overlap, party, "bank", beside=folders[1])


def test_a_small_overlap_is_withheld(counted):
    ends = count(counted(least=280))
    assert codes(ends) == [0, 0], ends
    for _, facts, _ in ends.values():
        assert (facts["common"], facts["withheld"]) == (None, True)
        assert "withheld" in facts["learnt"][-1]


@pytest.mark.long
def test_groups_of_one_party_are_counted_and_one_side_alone_is_told(counted):
    job = counted(least=0, groups="bank", told_to="feature")
    job.change("bank", overlap_groups="kind")
    ends = count(job)
    assert codes(ends) == [0, 0], ends
    _, shop = ids_of(job)
    table = pl.read_parquet(job.home("bank") / "table.parquet")
    true = table.filter(pl.col("id").is_in(list(shop)))["kind"].value_counts()
    assert ends["shop"][1]["groups"] == dict(true.iter_rows())
    assert "groups" not in ends["bank"][1]
    assert ends["bank"][1]["common"] is None


def test_a_noisy_count_is_charged_to_both_ledgers_each_time(counted):
    job = of_csv(counted(epsilon=1.0, delta=1e-6))
    assert "tallystick ledger" in error_of_one(job, "shop")  # bank has a ledger
    parties = [load_party(job.home(name) / "party.yaml") for name in PARTIES]
    create_ledger(parties[1])
    bank, shop = ids_of(job)
    for times, counts_of in enumerate((lambda job: both(job, "overlap")[0], count), start=1):  # the first on the light install
        ends = counts_of(job)
        assert codes(ends) == [0, 0], ends
        assert all(abs(facts["common"] - len(bank & shop)) <= 14 for _, facts, _ in ends.values())
        for party in parties:
            entries = known_ledger(party).entries(f"{party.privacy.dataset}-keys")
            assert [entry.event.epsilon for entry in entries] == [1.0] * times
    job.change("bank", privacy={"cap": 2.0, "delta": 1e-5})
    with pytest.raises(BudgetExceeded, match=r"privacy\.cap"):  # before anybody is called
        run_overlap(*files_of(job, "bank"), watcher=Silent())
    ((_, facts),), _ = ends_of(start(job, "bank", "overlap"))  # the light install adds up no releases
    assert "pip install dp-accounting" in facts["error"]["message"]


def test_a_killed_count_ends_the_other_side_and_counts(counted):
    job = counted(rows=300, least=5, answers=2)
    running = job.start_all("overlap")
    running["shop"].phase("overlap")
    running["shop"].kill()
    assert running["bank"].end() in (0, 3)  # it may have been quicker
    assert running["bank"].found
    assert codes(count(job)) == [0, 0]
    assert codes(count(job)) == [2, 2]


@pytest.mark.parametrize(
    ("overlap", "message"),
    [
        ({"epsilon": 1.0, "least": 5}, "least: limit exact counts, and with epsilon = 1 there are none"),
        ({"delta": 1e-6}, "delta = 1e-06: only works with epsilon"),
        ({"groups": "nobody"}, "overlap.groups = .nobody.: is not a party"),
        ({"groups": "bank", "told_to": "label"}, "the party without groups counts"),
        ({"epsilon": 0.0}, "overlap.epsilon"),
    ],
)
def test_what_does_not_go_together_is_one_line(overlap, message):
    with pytest.raises(ConfigError, match=message):
        parse_contract(contract_values(PARTIES, overlap=overlap))


@pytest.mark.parametrize("terms", [{"least": 50}, {"epsilon": 1.0}])
def test_a_group_of_few_is_refused_at_home_because_its_name_and_size_would_cross(counted, terms):
    job = counted(groups="bank", **terms)
    path = job.home("bank") / "table.parquet"
    table = (
        pl.read_parquet(path)
        .with_row_index("row")
        .with_columns(
            place=pl.when(pl.col("row") == 7)
            .then(pl.lit("hamlet"))
            .when(pl.col("row") % 2 == 0)
            .then(pl.lit("a"))
            .otherwise(pl.lit("b"))
        )
    )
    table.drop("row").write_parquet(path)
    job.change("bank", overlap_groups="place")
    with pytest.raises(DataError, match=r"group 'hamlet' has 1 id, fewer than \d0: .* join it with another group") as told:
        run_overlap(*files_of(job, "bank"), watcher=Silent())  # before anybody is called
    summary = check_party_file(job.home("bank") / "party.yaml", job.home("bank") / "contract.yaml")
    assert f"tallystick overlap would stop: {told.value}" in summary["warnings"]


def test_a_party_without_a_column_for_its_groups_is_told(counted):
    job = counted(groups="bank")
    assert "overlap_groups: is missing" in error_of_one(job, "bank")


def test_a_contract_without_it_has_the_hash_that_it_had():
    values = contract_values(PARTIES)
    assert "overlap" not in parse_contract(values).canonical_json()
    assert parse_contract(values | {"overlap": {}}).hash != parse_contract(values).hash


def test_check_says_who_learns_what():
    def lines(**overlap):
        contract = parse_contract(contract_values(PARTIES, overlap=overlap))
        return [line for line in disclosure_lines(contract, own_columns=True) if "tallystick overlap" in line]

    assert "bank and shop how many are common; exact, if 100 or more" in lines()[0]
    assert "epsilon" not in lines(epsilon=2.0)[0]
    assert "2-DP of the other side's ids" in lines(epsilon=2.0)[0]
    assert lines(told_to="label")[1] == "`tallystick overlap`: shop learns no count"
