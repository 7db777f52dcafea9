"""Make the run folders that later code must still read: python tests/formats/make_formats.py It writes tests/formats/N for
today's format N: what each party keeps of a tiny run, its table, and the scores of the run's model.

Whoever changes the format runs it once.
"""

import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tiny import contract_values, lay_out, tables  # noqa: E402

from tallystick import predict, run  # noqa: E402
from tallystick.run_folder.folder import FORMAT  # noqa: E402

PARTIES = ("bank", "shop")
LEFT_OUT = ("lock", "report.html", "run.log", "checkpoints", "baseline")


def both(work):
    """Run each party's side in a thread of its own. Return what each returns, by name."""
    with ThreadPoolExecutor(len(PARTIES)) as pool:
        return dict(zip(PARTIES, pool.map(work, PARTIES), strict=True))


def scores(root: Path, output: Path) -> None:
    """Let both parties score the label party's table with the run in their homes."""

    def work(name):
        home = root / name
        return predict(home / "contract.yaml", home / "party.yaml", output=output if name == "bank" else None)

    both(work)


def make(target: Path) -> None:
    """Run the tiny job and keep what is needed of it. The contract names a value that differs from its key's default."""
    values = contract_values(PARTIES, model__embedding_scale=0.1, training__starts="public")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        job = lay_out(root, PARTIES, values, tables(PARTIES, rows=200))
        both(lambda name: run(job.home(name) / "contract.yaml", job.home(name) / "party.yaml"))
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        scores(root, target / "scores.csv")
        shutil.copy(job.home("bank") / "contract.yaml", target)
        for name in PARTIES:
            (kept,) = job.runs(name)
            shutil.copytree(kept, target / name / kept.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
            shutil.copy(job.home(name) / "table.parquet", target / name)


if __name__ == "__main__":
    make(HERE / str(FORMAT))
