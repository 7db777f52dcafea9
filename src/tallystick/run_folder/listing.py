"""Find run folders by their names: the folders of a contract, a folder's format version, and a folder's contract."""

import re
from pathlib import Path

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.differences import differences
from tallystick.errors import ConfigError, StorageError
from tallystick.reading import read_yaml

FORMAT = 5  # format of a run folder; in another one, files have other names and other keys
ANEW = "start a new run on all sides, without --resume"


def run_prefix(contract: Contract, use: str) -> str:
    """Return the prefix of the names of a contract's run folders."""
    return f"{contract.name}-{contract.hash[:8]}" + (f"-{use}" if use else "")


def folders_of(runs: Path, contract: Contract, use: str) -> list[Path]:
    """List a contract's folders, or those of another ``use`` of it, the newest last."""
    prefix = run_prefix(contract, use) + "-"
    numbered = [
        (int(path.name.removeprefix(prefix)), path)
        for path in runs.glob(f"{prefix}*")
        if re.fullmatch("[0-9]+", path.name.removeprefix(prefix)) and path.is_dir()
    ]
    return [path for _, path in sorted(numbered)]


def of_another_text(runs: Path, contract: Contract) -> str:
    """Name, in brackets, a folder of the same contract name with another text, and the keys that differ; empty if there is none.

    Usually somebody changed a key. Another version may also have another default than the one that began the run.
    """
    folders = sorted(path for path in runs.glob(f"{contract.name}-*-*") if path.is_dir())
    if not folders:
        return ""
    try:
        keys = differences(contract.canonical_json(), contract_of(folders[-1]).canonical_json())
    except ConfigError as error:
        keys = [str(error)]
    return f" ({folders[-1].name} is of another text of it, by a key or by a version's default: {'; '.join(keys)})"


def require_format(path: Path) -> None:
    """Refuse a run folder that another version of tallystick wrote. Raises ConfigError."""
    if not (path / "contract.json").exists():
        return  # no run got as far as its contract
    try:
        with (path / "format").open("rb") as file:
            written = file.read(20).decode("ascii", "replace").strip()
    except FileNotFoundError:
        written = "none"
    except OSError as error:
        raise StorageError(f"{path / 'format'} cannot be read: {error.strerror}") from None
    if written == str(FORMAT):
        return
    raise ConfigError(
        f"{path}: is a run folder of another version of tallystick (format {written!r}; this one reads {FORMAT!r}); use that "
        f"version for it, or {ANEW}; if this version wrote it, its file `format` is damaged: write {FORMAT} into it"
    )


def contract_of(path: Path) -> Contract:
    """Read the contract of a run folder. Raises ConfigError if it has no readable contract."""
    file = path / "contract.json"
    if not file.is_file():
        raise ConfigError(f"{path}: is not a run folder (it holds no contract.json); give one of the folders under `runs`")
    require_format(path)
    try:
        return parse_contract(read_yaml(file), source=str(file))  # JSON is YAML
    except StorageError as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
