"""Render results into one self-contained page. Nothing is computed here."""

from tallystick.report.page import render, to_html
from tallystick.results import Result, merge, read_result

__all__ = ["Result", "merge", "read_result", "render", "to_html"]
