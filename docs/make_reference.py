"""Write docs/reference/python-names.md from the docstrings of the public names: ``make reference``."""

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, is_typeddict

import tallystick

PAGE = Path(__file__).with_name("reference") / "python-names.md"
HEAD = """# Python names, from the code

What `import tallystick` offers, loaded when it is first used; `make reference` makes this page from the docstrings. Examples are
in [Python](python-api.md), the keys of a contract and a party file in [Configuration](configuration.md).

These names are public, and no others are: every module below `tallystick` is internal and may change at any time. Until 1.0 a
public name may change in a minor version, with a line in the changelog; from 1.0 on it is deprecated for a minor version first.
The same holds for keys of contract and party file, commands and their options, `result.json` and run folders.
"""
CHAPTERS = {
    "Running": ("simulate", "run", "predict", "Predicted"),
    "Contracts and party files": ("Contract", "load_contract", "parse_contract", "PartyFile", "load_party"),
    "Results": ("Result", "read_result", "render"),
    "Private evaluation": ("release_private_auc", "PrivateAuc", "Ledger"),
    "Modules of one's own": ("Features", "FeatureShape"),
    "Attacks of one's own": ("LabelInferenceAttack", "View", "Scores"),
    "Progress": ("Watcher", "Silent"),
}

CHANGES = {
    "labels": "labels, once",
    "penalties": "the loss",
    "gradients": "cut gradients",
    "embedding penalties": "the feature party's gradient",
    "embeddings": "cut embeddings",
}


def reference() -> str:
    """Give the page."""
    parts = [HEAD]
    for title, names in CHAPTERS.items():
        parts += [f"## {title}", *(_entry(name, getattr(tallystick, name)) for name in names)]
    parts += [
        "## Errors",
        "[Errors](errors.md) lists them, with what a peer is told of each.",
        "## Ways of linking rows",
        "`LINKAGES`, for the contract's `alignment.method`: " + ", ".join(f"`{name}`" for name in tallystick.LINKAGES) + ".",
        "## Defences",
        "`DEFENSES`, by the `method` of an entry of the contract's `defense`. [Defences](../explanation/defenses.md) says which "
        "to choose, and [defences in a run](defenses.md) what a run adds.",
        _table(
            ("method", "of", "changes", "targets"),
            (
                (
                    f"`{name}`",
                    "columns" if defense.hides_features() else "labels",
                    " and ".join(dict.fromkeys(CHANGES[part.stage] for part in defense(**defense.usual).parts())),
                    "all" if len(defense.targets) == 3 else ", ".join(defense.targets),
                )
                for name, defense in tallystick.DEFENSES.items()
            ),
        ),
    ]
    for name, defense in tallystick.DEFENSES.items():
        parts += [f"### `{name}`", _markdown(inspect.getdoc(defense) or "")]
    parts += [
        "## Attacks",
        "`LABEL_INFERENCE_ATTACKS` and `MEMBERSHIP_ATTACKS`, by the names in reports. [Attacks](attacks.md) lists them.",
        "## Metrics",
        "`METRICS`, by the type of the target and the names in `result.evaluation`.",
        _table(
            ("metric", "target", "in words", "better is"),
            (
                (f"`{name}`", target, metric.title, "higher" if metric.higher_is_better else "lower")
                for target, metrics in tallystick.METRICS.items()
                for name, metric in metrics.items()
            ),
        ),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _entry(name: str, what: Any) -> str:
    parts = [f"### `{name}`"]
    if inspect.isfunction(what):
        parts.append(f"```python\n{name}{_signature(what)}\n```")
    parts.append(_markdown(inspect.getdoc(what) or ""))
    if inspect.isclass(what):
        fields = getattr(what, "__struct_fields__", None) or getattr(what, "model_fields", ())
        fields = fields or (what.__annotations__ if is_typeddict(what) else ())
        parts += ["Fields: " + ", ".join(f"`{field}`" for field in fields) + "."] if fields else []
        parts += [f"- `{member}`: {_first(found)}" for member, found in _members(what)]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ").replace(".\n- ", ".\n\n- ", 1)


def _members(what: type) -> Iterable[tuple[str, Any]]:
    """Methods and properties of the class itself that have a docstring, in the order of the source."""
    for name, found in vars(what).items():
        if not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)) and inspect.getdoc(found):
            yield (f"{name}()" if inspect.isfunction(found) else name), found


def _signature(function: Any) -> str:
    """The signature, a line per parameter where it is long; annotations without the modules they come from."""
    found = inspect.signature(function)
    named = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])")
    text = named.sub("", str(found)).replace("'", '"')
    if len(text) < 80:
        return text
    lines, keyword_only = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            lines.append("*")
            keyword_only = True
        lines.append(named.sub("", str(parameter)))
    returned = named.sub("", inspect.formatannotation(found.return_annotation))
    return "(\n" + "".join(f"    {line},\n" for line in lines) + f") -> {returned}"


def _first(what: Any) -> str:
    """The first paragraph of the docstring."""
    return _inline((inspect.getdoc(what) or "").split("\n\n")[0])


def _markdown(doc: str) -> str:
    """A docstring as Markdown: paragraphs, lists, and a list of its arguments."""
    parts = []
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith("Args:\n"):
            arguments = re.split(r"\n {4}(?=\S)", paragraph)[1:]
            parts.append("\n".join(f"- `{name}`: {_inline(said)}" for name, _, said in (a.partition(": ") for a in arguments)))
        elif paragraph.startswith("- "):
            parts.append("\n".join(f"- {_inline(item)}" for item in re.split(r"(?:^|\n)- ", paragraph)[1:]))
        else:
            parts.append(_inline(paragraph))
    return "\n\n".join(parts)


def _inline(text: str) -> str:
    """Text in one line, with code as Markdown has it and nothing else that Markdown would read."""
    pieces = " ".join(text.split()).replace("``", "`").split("`")
    return "`".join(piece if index % 2 else re.sub(r"([*<\[\]|])", r"\\\1", piece) for index, piece in enumerate(pieces))


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
