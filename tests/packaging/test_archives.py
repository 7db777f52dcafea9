"""The wheel holds the library and the files that it reads, the source archive what builds the wheel, and neither
anything else.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; _, kind, out = sys.argv; getattr(build_meta, f'build_{kind}')(out)"
RUN = {"cwd": ROOT, "capture_output": True, "text": True}


def tracked(*places):
    """Return the files that git has there; a checkout without git is tested elsewhere."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *places], **RUN)
    if listed.returncode:
        pytest.skip("no git here to say which files are the library's")
    return {line for line in listed.stdout.splitlines() if (ROOT / line).exists()}


def build(kind, source, out):
    done = subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], **{**RUN, "cwd": source})
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Return the names in the wheel and in the source archive. The wheel is built from the unpacked archive."""
    tree, out, unpacked = (tmp_path_factory.mktemp(name) for name in ("tree", "out", "unpacked"))
    for name in tracked("."):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes((ROOT / name).read_bytes())
    build("sdist", tree, out)
    (archive,) = out.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
        inside = {name.partition("/")[2] for name in packed.getnames() if not packed.getmember(name).isdir()}
    build("wheel", next(unpacked.iterdir()), out)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist()), inside


def test_the_wheel_is_the_library_and_what_it_reads(archives):
    wheel, _ = archives
    library = {name.removeprefix("src/") for name in tracked("src")}
    assert {name for name in wheel if ".dist-info/" not in name} == library


def test_the_source_archive_is_what_builds_it(archives):
    _, source = archives
    made = {name for name in source if name in ("PKG-INFO", "setup.cfg") or ".egg-info/" in name}
    assert source - made == tracked("src") | {"pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "CHANGELOG.md"}
