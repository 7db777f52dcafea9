"""Render the page of a run in use."""

import json
import os
from pathlib import Path

from tallystick.report.compare import text
from tallystick.report.templating import render_template, script_json, write_page
from tallystick.results.monitoring import Monitoring

WORDS = {"same": "no", "little": "a little", "some": "some", "much": "much", "unjudged": ""}
"""How far a distribution has moved, in words."""

PARTS = {
    "all": "all of it",
    "waiting": "until its batch began",
    "partners": "the partners' answer",
    "scoring": "lookup and scoring",
}
"""Parts of a request, in words."""


def monitoring_html(monitoring: Monitoring) -> str:
    """Return the page."""
    return render_template(
        "monitor.html.j2",
        m=monitoring,
        rows=sorted(monitoring.compared, key=lambda each: -each.stability),
        compared=len(monitoring.compared),
        words=WORDS,
        parts=PARTS,
        text=text,
        json=script_json(json.dumps(monitoring.to_dict(), allow_nan=False, separators=(",", ":"))),
    )


def render_monitoring(monitoring: Monitoring, path: str | os.PathLike[str]) -> Path:
    """Write the page. Raises StorageError."""
    return write_page(monitoring_html(monitoring), path)
