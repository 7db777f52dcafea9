"""A feature party serves without the extra `serve`, and a label party that lacks it is told what to install."""

from tiny import said_by

SCRIPT = """
import importlib, sys

assert not {"starlette", "tallystick.serving.label_party"} & set(sys.modules)

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("starlette", "uvicorn", "httptools", "prometheus_client"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from tallystick.cli.serve import LOADS
from tallystick.errors import ConfigError

for name in LOADS:
    importlib.import_module(name)
from tallystick.serving.label_party import serve_label_party

try:
    serve_label_party(None, None, table=None, run=None, watcher=None)
except ConfigError as error:
    print(error)
"""


def test_without_the_extra_a_line_says_what_to_install():
    assert said_by(SCRIPT).endswith("is not installed; run: pip install 'tallystick[serve]'\n")
