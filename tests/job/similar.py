"""A job that links rows by place. The label depends on a field over the map, which the feature parties know at other places."""

import numpy as np
import polars as pl
import tiny
import yaml
from tiny import lay_out

PARTIES = ("bank", "club", "shop")
PLACE = {"lon": "lon", "lat": "lat"}
UNITS = {"lon": "degree", "lat": "degree"}


def _field(lon, lat):
    return np.sin(6 * lon) + np.cos(7 * lat)


def tables(parties=PARTIES, *, rows=400, places=80, target="regression", seed=1):
    """Make tables whose label depends on the field at the row's place, and a little on an own column. No column holds a place."""
    rng = np.random.default_rng(seed)
    frames = {}
    for index, name in enumerate(parties):
        count = rows if index == 0 else places
        lon, lat = rng.uniform(0.1, 0.9, (2, count))
        field = _field(lon, lat)
        if index == 0:
            x = rng.normal(size=count)
            score = 2 * field + x
            label = {
                "regression": 50 + 10 * score,
                "binary": (score > 0).astype(np.int64),
                "multiclass": np.digitize(score, [-1.0, 1.0]),
            }[target]
            frames[name] = pl.DataFrame({"lon": lon, "lat": lat, "x": x, "day": np.arange(count) % 50, "y": label})
        else:
            frames[name] = pl.DataFrame(
                {"lon": lon, "lat": lat, "level": field + 0.1 * rng.normal(size=count), "noise": rng.normal(size=count)}
            )
    return frames


def columns(parties=PARTIES):
    """Return what each party's file says of its columns."""
    own = {"keys": PLACE, "units": UNITS, "features": {"numeric": ["x"], "categorical": []}, "label": "y"}
    theirs = {"keys": PLACE, "units": UNITS, "features": {"numeric": ["level", "noise"], "categorical": []}}
    return {name: own if name == parties[0] else theirs for name in parties}


def contract_values(parties=PARTIES, *, target="regression", **changes):
    """Return a contract for a small job; nested keys are given with a double underscore."""
    dimension = {"unit": "degree", "low": 0.0, "high": 1.0}
    given = {
        "alignment": {
            "method": "similarity",
            "similarity": {
                "dimensions": [{"name": "lon", **dimension}, {"name": "lat", **dimension}],
                "neighbors": 5,
                "window": 0.2,
                "deviation": 0.1,
                "failure": 0.1,
            },
        },
        "target": {"type": target, **({"classes": 3} if target == "multiclass" else {})},
        "model": {"hidden": [8, 8], "cut_after": 1, "merge": {"width": 8, "heads": 2, "top": [8]}},
        "training__batch_size": 32,
        "training__learning_rate": 0.02,
    }
    values = tiny.contract_values(parties, **{**given, **changes})
    values["parties"]["helper"] = {"role": "helper"}
    return values


def lay_out_similar(root, **changes):
    """Lay out the three parties and the helper on disk."""
    parties = (*PARTIES, "helper")
    frames = {**tables(), "helper": pl.DataFrame({"x": [0]})}
    contract = contract_values(**changes)
    job = lay_out(root, parties, contract, frames)
    bank, helper = f"127.0.0.1:{tiny.free_port()}", f"127.0.0.1:{tiny.free_port()}"
    for name in parties:
        path = job.home(name) / "party.yaml"
        values = yaml.safe_load(path.read_text())
        for key in ("keys", "features", "label", "peers", "listen"):
            values.pop(key, None)
        if name == "helper":
            values.pop("table")
            values["listen"] = helper
        elif name == "bank":
            values |= {"listen": bank, "peers": {"helper": {"address": helper}}, **columns()[name]}
        else:
            values |= {"peers": {"bank": {"address": bank}, "helper": {"address": helper}}, **columns()[name]}
        path.write_text(yaml.safe_dump(values, sort_keys=False))
    return job
