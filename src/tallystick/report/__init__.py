"""Renders results into one self-contained page. It computes nothing."""

from tallystick.report.page import render, to_html
from tallystick.results import Result, merge, read_result

__all__ = ["Result", "merge", "read_result", "render", "to_html"]
