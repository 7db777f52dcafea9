"""The audit of a linkage finds keys that the links give away, on either side, and none if links belong to other keys.

Shapes: N rows of the label party, M rows of the feature party, K links.
"""

from dataclasses import replace

import numpy as np
import pytest
from tiny import contract_values, few_places

from tallystick.alignment.distances import nearest_keys
from tallystick.alignment.encoding import encode_keys
from tallystick.alignment.outcome import Alignment, Candidates
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity_noise import fit, noisy_similarities, scale_of
from tallystick.audit.linkage import LinkedSide, audit_linkage
from tallystick.audit.located_keys import located_by_helper
from tallystick.config.contract import parse_contract
from tallystick.network.channel import no_progress
from tallystick.run_folder.folder import RunFolder

BANK, SHOP, K = "bank", "shop", 6
PLACES = [{"name": name, "unit": "degree", "low": 0.0, "high": 1.0} for name in ("lon", "lat")]
NAMES = [{"name": "name", "kind": "text"}]
SYLLABLES = ("ka", "lo", "mi", "ren", "ta", "sul", "do", "ver", "ni", "pa", "gro", "he", "bri", "zu", "wal", "ste")
SECRET = bytes(range(32))


def contract_of(dimensions, **terms):
    coarse = {"window": 0.2, "deviation": 0.1, "failure": 0.1, "text_bits": 2048, "hashes": 15}
    similarity = {"dimensions": dimensions, "neighbors": K, **coarse, **terms}
    values = contract_values((BANK, SHOP), alignment={"method": "similarity", "similarity": similarity})
    values["parties"]["helper"] = {"role": "helper"}
    return parse_contract(values)


def places(count, *, seed):
    return SimilarKeys(numbers_RD=np.random.default_rng(seed).uniform(0.1, 0.9, (count, 2)))


def texts(count, *, seed):
    rng = np.random.default_rng(seed)
    names = list(dict.fromkeys("".join(rng.choice(SYLLABLES, rng.integers(3, 6))) for _ in range(3 * count)))
    return SimilarKeys(numbers_RD=np.empty((count, 0)), texts=(tuple(names[:count]),))


def links_of(bank, shop, terms):
    """Return what the helper sends each side: the nearest keys, with the shop's rows numbered in their order."""
    links = nearest_keys(encode_keys(bank, terms, SECRET), encode_keys(shop, terms, SECRET), terms)
    scale = scale_of(*fit(links), terms)
    stream = np.random.default_rng(1)
    numbers_NK, similarity_NK = noisy_similarities(links, scale, keep=terms.links, rng=SecureRandom(source=stream.bytes))
    rows = np.arange(len(shop))
    return {
        BANK: Candidates(numbers_NK=numbers_NK, rows=len(shop), similarity_NK=similarity_NK, scale=scale),
        SHOP: Candidates(numbers_NK=np.sort(numbers_NK), rows=len(shop), own_rows=rows, scale=scale),
    }


def audited(party, bank, shop, folder, *, dimensions=PLACES, sent=None, sigma=None, **terms):
    """Audit a party's own keys; ``sent`` are those that both sent instead, ``sigma`` is noise on similarities."""
    contract = contract_of(dimensions, **terms)
    agreed = contract.alignment.similarity
    found = links_of(*(sent or (bank, shop)), agreed)[party]
    if sigma is not None:
        found = replace(found, scale=replace(found.scale, sigma=sigma))
    rows_N = np.arange(len(bank)) if party == BANK else np.full(len(bank), -1)
    alignment = Alignment(method="similarity", rows_N=rows_N, sizes={"own": len(bank)}, learnt=[], candidates={SHOP: found})
    keys, noisy = (bank, sent and sent[0]) if party == BANK else (shop, sent and sent[1])
    kept = RunFolder.new(folder / party, contract, party, key=None)
    if noisy is not None:
        kept.save_noisy_keys(noisy.numbers_RD, of=keys.noise_name(contract.hash))
    side = LinkedSide(contract=contract, party=party, folder=kept, keys=keys, alignment=alignment, progress=no_progress)
    return audit_linkage(side, agreed)


def by_seat(findings):
    return {(found.name, found.attacker, found.located): found for found in findings}


# --- places


@pytest.mark.parametrize("sees", ["ranks", "clear"])
def test_each_side_is_told_how_near_its_peer_comes_to_its_keys(tmp_path, sees, monkeypatch):
    few_places(monkeypatch)  # medians over 60 of the places equal those over all, within a hundredth of the chance's
    bank, shop = places(400, seed=1), places(60, seed=2)
    at_bank = by_seat(audited(BANK, bank, shop, tmp_path, helper_sees=sees).attacks)
    at_shop = by_seat(audited(SHOP, bank, shop, tmp_path, helper_sees=sees).attacks)
    cells, fit_ = at_bank["cells", SHOP, BANK], at_shop["trilateration", BANK, SHOP]
    assert cells.median < 0.3 * cells.chance
    assert fit_.median < 0.3 * fit_.chance
    assert "does not know" in cells.note
    assert "does not know" in fit_.note
    assert cells.dimensions == ["lon", "lat"]
    assert {attacker for _, attacker, _ in at_bank} == ({SHOP} if sees == "clear" else {SHOP, "helper"})


@pytest.mark.long
def test_keys_that_noise_has_moved_anywhere_are_not_located(tmp_path):
    """Both sent other places, uniform like their own, so nobody comes near the true ones.

    Uninformed places are off by a guess's median, or by three quarters of it in the middle of the map. Of 60 distances the ratio
    of the two medians has a standard deviation of some 0.12, in the middle 0.09: below 0.4 is four of these away, which happens
    less than once in 10,000 draws. The seeds are fixed.
    """
    bank, shop = places(400, seed=1), places(60, seed=2)
    others = places(400, seed=3), places(60, seed=4)
    for party in (BANK, SHOP):
        seats = by_seat(audited(party, bank, shop, tmp_path, sent=others).attacks)
        assert {attacker for _, attacker, _ in seats} == {"helper", SHOP if party == BANK else BANK}
        for found in seats.values():
            assert found.median > 0.4 * found.chance, found.name


def test_a_helper_locates_ranks_of_these_keys_and_not_of_others():
    terms = contract_of(PLACES).alignment.similarity
    keys = places(300, seed=5)
    (planted,) = located_by_helper(keys, keys, terms, party=BANK, helper="helper")
    (absent,) = located_by_helper(keys, places(300, seed=6), terms, party=BANK, helper="helper")
    assert planted.name == absent.name == "rank-geometry"
    assert planted.median < 0.1 * planted.chance
    assert absent.median > 0.8 * absent.chance


@pytest.mark.long
def test_a_map_shows_own_keys_and_the_peers_only_where_links_place_them(tmp_path):
    bank, shop = places(400, seed=1), places(60, seed=2)
    (shown,) = audited(BANK, bank, shop, tmp_path).maps
    theirs = {tuple(np.round(place, 9)) for place in shop.numbers_RD.tolist()}
    assert {tuple(np.round(place, 9)) for place in shown.own} <= {tuple(np.round(place, 9)) for place in bank.numbers_RD.tolist()}
    assert not {tuple(np.round(place, 9)) for place in shown.located} & theirs
    assert all(own < len(shown.own) and located < len(shown.located) for own, located in shown.links)


# --- texts


def test_texts_are_named_where_links_and_similarities_tell_of_them(tmp_path):
    """Names on the other side differ in one letter, and a list has as many: a guess names one in 60, or one in 80."""
    bank = texts(80, seed=1)
    shop = SimilarKeys(numbers_RD=np.empty((60, 0)), texts=(tuple(name.replace("a", "e", 1) for name in bank.texts[0][:60]),))
    for party, name, attacker in ((BANK, "neighbor-fit", SHOP), (SHOP, "similarity-fit", BANK)):
        found = by_seat(audited(party, bank, shop, tmp_path, dimensions=NAMES).named)
        assert found[name, attacker, party].right > 0.4, name
        assert found["filter-graph", "helper", party].right > 0.5


def test_links_of_other_texts_and_similarities_of_noise_name_nothing(tmp_path):
    """One of 60 or 80 is right by chance: over a fifth of them has a chance far below one in a billion.

    A feature party plays the label party with its own texts, whatever the links are. There noise on similarities removes what
    they show.
    """
    bank, shop, others = texts(80, seed=1), texts(60, seed=2), (texts(80, seed=3), texts(60, seed=4))
    of_links = by_seat(audited(BANK, bank, shop, tmp_path / "links", dimensions=NAMES, sent=others).named)
    assert of_links["neighbor-fit", SHOP, BANK].right < 0.2
    of_noise = by_seat(audited(SHOP, bank, shop, tmp_path / "noise", dimensions=NAMES, sigma=1e6).named)
    assert of_noise["similarity-fit", BANK, SHOP].right < 0.2


def test_examples_show_own_texts_alone(tmp_path):
    bank, shop = texts(80, seed=1), texts(60, seed=2)
    for party, own in ((BANK, bank), (SHOP, shop)):
        summary = audited(party, bank, shop, tmp_path, dimensions=NAMES)
        for example in summary.examples:
            shown = [example.own] if party == BANK else example.linked
            assert set(shown) <= set(own.texts[0])
    assert summary.guarantee
