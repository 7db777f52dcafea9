"""What an installed wheel must do on a machine that has nothing else: `make dist` runs this where only its dependencies are."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from tallystick import render, simulate

rng = np.random.default_rng(0)
ids, own, other = range(500), rng.normal(size=500), rng.normal(size=500)
tables = {"bank": pl.DataFrame({"id": ids, "own": own, "y": own + other > 0}), "shop": pl.DataFrame({"id": ids, "other": other})}
parties = {"bank": {"keys": {"id": "id"}, "label": "y"}, "shop": {"keys": {"id": "id"}}}
contract = {"name": "installed", "alignment": {"keys": [{"name": "id"}]}, "training": {"epochs": 5}}
result = simulate(contract | {"parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}}}, tables, parties)
with TemporaryDirectory() as folder:
    page = Path(render(result, Path(folder) / "report.html"))
    assert "AUC" in page.read_text(encoding="utf-8")
    command = [Path(sys.executable).with_name("tallystick"), "init", Path(folder) / "home", "--role", "label"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
sys.stdout.write(f"installed alone, it trains: AUC {result.joint['auc']['value']:.3f}\n")
