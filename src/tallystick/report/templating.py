"""Provide what pages share: templates, formats, and writing a file that is replaced only by a complete one."""

import os
import re
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from tallystick.errors import StorageError
from tallystick.report import formats
from tallystick.storage import Origin, write_own


def render_template(name: str, **values: Any) -> str:
    """Fill a template. Every value is escaped, and ``css`` is the style sheet."""
    return compiled(name).render(css=_css(), **values)


def render_source(source: str, **values: Any) -> str:
    """Fill a template of another package, given as text. It may use the templates here."""
    return _compiled_source(source).render(css=_css(), **values)


def compiled(name: str) -> Template:
    """Return a template that can be filled. It is cached, because compiling a page takes longer than filling it."""
    return _environment().get_template(name)


def with_code(text: str) -> Markup:
    """Escape a sentence, and format its words between backticks as code."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped)


def script_json(text: str) -> Markup:
    """Write JSON that cannot end its script element: <, > and & are written as escapes."""
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704


def write_page(page: str, path: str | os.PathLike[str], *, origin: Origin | None = None) -> Path:
    """Write a page. An earlier file is replaced only when the page is complete. Raises StorageError.

    ``origin`` is that of a run's folder. The page is encrypted if the folder's files are.
    """
    path = Path(path)
    try:
        write_own(path, page.encode(), origin=origin or Origin(folder=path.parent))
    except StorageError as error:
        raise StorageError(f"the report cannot be written: {error}") from None
    return path


@lru_cache(maxsize=8)
def _compiled_source(source: str) -> Template:
    return _environment().from_string(source)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=formats.number,
        quantity=formats.quantity,
        duration=formats.duration,
        size=formats.size,
        moment=formats.moment,
        interval=formats.interval,
        percent=formats.percent,
        in_runs=formats.in_runs,
        spread=formats.spread_in_words,
        with_code=with_code,
    )
    return environment


@cache
def _css() -> Markup:
    return Markup(_asset("page.css"))  # noqa: S704 (our own file)


def _asset(name: str) -> str:
    return (resources.files("tallystick.report") / name).read_text(encoding="utf-8")
