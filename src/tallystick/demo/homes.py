"""Write a job's files for parties that share one machine. Each has a home with its own key, its party file and the contract."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tallystick.config.party import load_party
from tallystick.network.certificates import write_test_certificates
from tallystick.run_folder.ledger import create_ledger
from tallystick.storage import make_folders, write_bytes


def move_in(root: Path, names: Sequence[str]) -> dict[str, Path]:
    """Make homes, each with its own certificate and key. The key that could issue more certificates is removed."""
    homes = {name: root / name for name in names}
    make_folders(root)
    with TemporaryDirectory(dir=root) as issued:
        write_test_certificates(Path(issued), list(names))
        for name, home in homes.items():
            make_folders(home)
            write_bytes(home / "ca.pem", (Path(issued) / "ca.pem").read_bytes())
            for suffix in (".pem", ".key"):
                (Path(issued) / f"{name}{suffix}").replace(home / f"own{suffix}")
    return homes


def write_job(root: Path, contract: Mapping[str, Any], parties: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    """Write the files that ``tallystick run contract.yaml --party party.yaml`` needs in each home, except tables. Return the
    homes.

    Args:
        root: the folder of the homes.
        contract: the contract's values.
        parties: by name, each party file's values except the party's name and certificate. The label party gets a ledger.
    """
    homes = move_in(root, list(parties))
    for name, home in homes.items():
        tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "own.key"}
        party_file = {"party": name, "tls": tls, **parties[name]}
        for file, values in (("party.yaml", party_file), ("contract.yaml", dict(contract))):
            write_bytes(home / file, yaml.safe_dump(values, sort_keys=False).encode())
        if contract["parties"][name]["role"] == "label":
            create_ledger(load_party(home / "party.yaml"))
    return homes
