"""Every file, folder and name on the map exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("docs/architecture.md", "CONTRIBUTING.md")}
SOURCES = tuple(ROOT / part for part in ("src/tallystick", "src", "experiments/src/tallystick_experiments", "docs", ""))
FILE = re.compile(r"(?<![\w/.*])((?:[\w.-]+/)*[\w-]+\.(?:py|toml|md|txt))\b(?:: (\w+(?:\.\w+)*)`)?")
FOLDER = re.compile(r"(?<![\w/.~-])((?:[\w-]+/)+)(?![\w*.])")


def named_files(text: str) -> list[tuple[str, str, str]]:
    """Return each file that a page names, the folder that its item or line of a drawing named last, and the name within
    it or none.
    """
    places, folder, drawn = [], "", False
    for line in text.splitlines():
        drawn ^= line.startswith("```")
        if drawn or not line.startswith("  "):
            folder = ""
        for found in sorted((*FILE.finditer(line), *FOLDER.finditer(line)), key=lambda match: match.start()):
            if found.re is FILE:
                places.append((found[1], folder, found[2] or ""))
            folder = found[1].rpartition("/")[0] or folder
    return places


def file_of(path: str, folder: str) -> Path | None:
    """Return the file, looked for beside the file before it, in the library, in the experiments, and from the root."""
    places = [source / part / path for source in SOURCES for part in ((folder, "") if folder else ("",))]
    return next((place for place in places if place.is_file()), None)


def names_in(path: Path) -> set[str]:
    """Return the names that a module defines, and those of its classes with the class before them."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {node.name, *(f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_name_of_the_map_is_there(page: str) -> None:
    places = named_files(PAGES[page])
    assert len(places) > 20
    lost = []
    for path, folder, name in places:
        file = file_of(path, folder)
        if file is None:
            lost.append(path)
        elif name and file.suffix == ".py" and name not in names_in(file):
            lost.append(f"{path}: {name}")
    assert not lost


@pytest.mark.parametrize("page", PAGES)
def test_every_folder_of_the_map_is_there(page: str) -> None:
    lost = [name for name in FOLDER.findall(PAGES[page]) if not any((source / name).is_dir() for source in SOURCES)]
    assert not lost


def test_every_name_in_a_drawing_is_defined_somewhere() -> None:
    defined = {
        part for source in SOURCES[:3] for path in source.rglob("*.py") for name in names_in(path) for part in name.split(".")
    }
    drawings = [block.split("```")[0] for block in PAGES["docs/architecture.md"].split("```text\n")[2:]]  # the first is the map
    words = {
        word
        for drawing in drawings
        for word in re.findall(r"\b_?(?:[a-z]+_[a-z_]+|(?:[A-Z][a-z]+){2,}|[A-Z]{5,})\b(?!\.py)", drawing)
    }
    files = {path.stem for source in SOURCES[:3] for path in (source, *source.rglob("*.py"), *source.rglob("*/"))}
    assert len(words) > 20
    assert words - defined - files == set()


def test_every_room_stands_on_the_map() -> None:
    map_block = PAGES["docs/architecture.md"].split("```text\n")[1].split("```")[0]
    words = set(re.findall(r"\w+", "\n".join(line.split("  ")[0] + " " + line for line in map_block.splitlines())))
    rooms = {path.stem for path in (ROOT / "src/tallystick").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} <= words


def test_a_lost_file_or_name_is_seen() -> None:
    assert named_files("`job/run.py` and\n  `job.py: Job`: nothing") == [("job/run.py", "", ""), ("job.py", "job", "Job")]
    assert file_of("job.py", "job") == ROOT / "src/tallystick/job/job.py"
    assert file_of("no/such.py", "") is None
    assert {"Job", "Job.name", "ALL_PHASES"} <= names_in(ROOT / "src/tallystick/job/job.py")
