"""Write public names, attacks and protocols into docs/reference/ from docstrings and tables: ``make reference``."""

import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, is_typeddict

import tallystick
from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS, FeatureInferenceAttack
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS
from tallystick.attacks.linkage.texts import TEXT_ATTACKS
from tallystick.attacks.membership.attack_table import MEMBERSHIP_ATTACKS
from tallystick.audit.columns_from_gradients import TURNED
from tallystick.config.sections import FOLDS, FULL_ALONE, LEAST_FOLDED
from tallystick.config.unaligned import METHODS as UNALIGNED_METHODS
from tallystick.defenses.defense import ANY
from tallystick.disclosure.table import DISCLOSURES
from tallystick.evaluation.private.release_table import MECHANISMS
from tallystick.imputation.imputer_table import FEATURE_IMPUTERS, LABEL_IMPUTERS, SUFFIXES
from tallystick.models.similarity.merges import MERGES

FOLDER = Path(__file__).with_name("reference")
HEAD = """# Python names, from the code

What `import tallystick` offers, loaded when it is first used. Examples are in [Python](python-api.md), the keys of a contract and
a party file in [Configuration](configuration.md).

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

FILES = ("Contract", "PartyFile")

CHANGES = {
    "labels": "labels, once",
    "penalties": "the loss",
    "gradients": "cut gradients",
    "embedding penalties": "the feature party's gradient",
    "embeddings": "cut embeddings",
}

PROTOCOLS = {
    "Sessions": ("network.session", "network.tls", "network.proxy", "network.messages"),
    "Intersection": (
        "alignment.psi",
        "alignment.choice",
        "alignment.psi_oprf",
        "alignment.buckets",
        "alignment.psi_diffie_hellman",
        "alignment.psi_malicious",
        "alignment.any_key",
    ),
    "Unions": (
        "alignment.psu",
        "alignment.psu_switching",
        "alignment.psu_diffie_hellman",
        "alignment.psu_helper",
    ),
    "Linking by similarity": (
        "alignment.similarity",
        "alignment.federal",
        "alignment.distances",
        "alignment.nearest",
        "alignment.key_noise",
        "alignment.similarity_noise",
    ),
    "Releases": ("defenses.noise", "privacy.ledger"),
}
BLOCKS = (
    "alignment.coin_toss",
    "alignment.group",
    "alignment.oprf.base_transfers",
    "alignment.oprf.extension",
    "alignment.oprf.cuckoo",
    "alignment.oprf.checked_extension",
    "alignment.oprf.key_value",
    "alignment.oprf.linear_code",
    "alignment.switching.network",
    "alignment.switching.transfers",
    "alignment.switching.shuffle",
    "alignment.switching.programmed",
    "alignment.switching.equality",
    "alignment.switching.delivery",
    "privacy.masks",
    "privacy.exact",
    "privacy.grid",
)

RULES = {
    "Keys": ("tables.text", "tables.normalise", "tables.keys"),
    "Labels and weights": ("tables.target",),
    "Columns": (
        "tables.encoder",
        "tables.bins",
        "tables.categories",
        "tables.sequences",
        "models.sequences",
        "tables.vectors",
    ),
    "Columns that say nothing": ("training.screening",),
    "Normalisation of layers": ("models.normalization",),
    "Split": ("tables.split",),
    "The report": (
        "evaluation.decisions",
        "evaluation.importance",
        "evaluation.explain",
        "tables.target_leakage",
        "evaluation.sharing",
    ),
    "Files": ("storage", "encryption"),
    "What an audit records": ("audit.recording",),
    "What noisy embeddings cost": ("run_folder.embedding_charge",),
    "Serving": (
        "job.versions",
        "serving.version_switch",
        "serving.shadow",
        "serving.kept_alignment",
        "scoring.windows",
        "scoring.journal",
        "scoring.feature_party_asks",
        "serving.connections",
    ),
    "Retraining": ("tables.extension", "run_folder.initial_weights"),
    "Monitoring": ("monitoring.drift",),
}
FEW_WORDS = 25
ENOUGH_WORDS = 40  # a module that says so much has its rule in its own docstring, and not in those of its functions


def reference() -> str:
    """Return the page."""
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
        "to choose, [the measurements](../results/defenses.md) what each stops and costs, and "
        "[what noisy embeddings cost](rules.md#what-noisy-embeddings-cost) what a ledger is charged for them.",
        _table(
            ("method", "of", "changes", "targets"),
            (
                (
                    f"`{name}`",
                    "columns" if defense.hides_features() else "labels",
                    " and ".join(dict.fromkeys(CHANGES[part.stage] for part in defense(**defense.usual).parts())),
                    "all" if defense.targets == ANY else ", ".join(defense.targets),
                )
                for name, defense in tallystick.DEFENSES.items()
            ),
        ),
    ]
    for name, defense in tallystick.DEFENSES.items():
        first, *others = (inspect.getdoc(defense) or "").split("\n\n")
        parts += [f"### `{name}`", *map(_markdown, (first, *filter(_promises_or_arguments, others)))]
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


def attacks() -> str:
    """Return the page of every attack of the audit."""
    labels = (
        (
            f"`{name}`",
            _words(row.reads) + (" and embeddings" if row.with_embeddings else ""),
            _known_labels(row),
            _inline(row.description),
            "hidden" if row.from_moments else "yes" if row.quick else "",
        )
        for name, row in LABEL_INFERENCE_ATTACKS.items()
        if not name.endswith("-unflipped")
    )
    columns = [
        (f"`{name}`", _known_columns(row), _inline(row.description), "yes" if row.quick else "")
        for name, row in FEATURE_INFERENCE_ATTACKS.items()
    ]
    columns.append(("`turned`", "some rows; reads cut gradients", _inline(TURNED.description), "yes"))
    membership = (
        (f"`{name}`", _words(reads), _first(type(attack)) + _settings(attack))
        for reads, found in MEMBERSHIP_ATTACKS.items()
        for name, attack in found.items()
    )
    linkage = (
        (f"`{name}`", row.seat, _inline(row.description))
        for table in (LINKAGE_ATTACKS, TEXT_ATTACKS)
        for name, row in table.items()
    )
    parts = [
        "# Attacks of the audit, from the code",
        "[The audit](../explanation/the-audit.md) explains what its "
        "figures mean, and [measured notes](../results/columns.md#of-the-attacks-on-labels) say more of some. An attack "
        "is given a partner's view and what its row says.",
        "## On labels",
        "Made by a feature party. Where the rows of two classes are told apart without a label, the attacker is told which "
        "class is rarer; of several labels, which is rarer than which. Where labels are numbers, it is told which way is "
        "up. A probe is told half of all labels, which no attacker has, and shows the least there is to find. A quick "
        "attack runs without `audit: true`, too; *hidden*: if labels are hidden, or several. `completion-fine-tuned` runs in "
        "benchmarks only.",
        "They follow Li et al. 2022 (`norm`, `direction`), Tran et al. 2018 (`spectral`), Fu et al. 2022 (`completion`), "
        "[Jiang et al. 2026](https://arxiv.org/abs/2603.03777) (`enumeration`) and [Xie et al. "
        "2023](https://arxiv.org/abs/2301.07284) (`first-steps`).",
        _table(("attack", "reads", "knows", "what it does", "quick"), labels),
        "With randomised labels, attacks on gradients that know no label have a form `NAME-unflipped`, quick where theirs is. It "
        "also knows the chance of a flip, trains a model on the replaced labels that they read, un-flips it, and adds the row's "
        "own.",
        "Where an attack on gradients that knows no label finds all (symmetric AUC .999), a full audit names those on one "
        "vector per row that are not quick, and does not run them.",
        "## On columns",
        "Made by a label party, from cut embeddings. It knows 20 or 200 rows, unless the table says otherwise. Those with its "
        "own columns run in benchmarks only.",
        "A run leaves out "
        + ", ".join(f"`{name}`" for name, row in FEATURE_INFERENCE_ATTACKS.items() if row.behind_noise)
        + " where embeddings have neither noise nor levels; `tallystick audit FOLDER` does not.",
        "`surrogate` follows He et al. 2019, `simulator` [Zhu et al. 2023](https://arxiv.org/abs/2310.10483), `marginals` [Ye et "
        "al. 2022](https://arxiv.org/abs/2210.06771).",
        _table(("attack", "knows", "what it does", "quick"), columns),
        "## On membership",
        "A party of a [union](../explanation/unions.md) asks which rows are real and which are imputed. A feature party reads "
        "gradients, a label party embeddings.",
        _table(("attack", "reads", "what it does"), membership),
        "## On keys that are linked by similarity",
        "The last three name texts. They have a list of every text and no other, the best possible. "
        "[What attackers locate](alignment-protocols.md#what-attackers-locate) says more.",
        _table(("attack", "made by", "what it does"), linkage),
    ]
    return "\n\n".join(parts) + "\n"


def _known_labels(row: LabelInferenceAttack) -> str:
    found = [row.knows.describe()]
    found += ["the contract, with `training.starts: public`"] if row.from_start else []
    found += ["the chance of a flip"] if row.from_flip else []
    found += ["its own bottom model"] if row.with_model else []
    return "; ".join(found)


def _known_columns(row: FeatureInferenceAttack) -> str:
    if row.from_start:
        return "no row; the contract, with `training.starts: public`"
    if row.from_marginals:
        return "no row; how each column is distributed"
    if row.from_others:
        return "no row; other people's rows with the same columns"
    return "some rows and its own columns" if row.own_columns else "some rows"


def methods() -> str:
    """Return the page of what a contract can name: ways of linking, methods for unaligned rows, imputers, merges, mechanisms."""
    linkages = (
        (
            f"`{name}`" + (f", `security: {security}`" if security else ""),
            "one or several" if row.several else "one",
            "yes" if row.helper else "no",
            row.guarantee,
            row.deviation + (f". With several feature parties: {row.deviation_of_several}" if row.deviation_of_several else ""),
        )
        for name, base in tallystick.LINKAGES.items()
        for security, row in (("", base), ("malicious", base.against_cheaters))
        if row is not None
    )
    unaligned = {
        name: importlib.import_module(f"tallystick.training.unaligned.{facts.implemented.split('.')[0]}")
        for name, facts in UNALIGNED_METHODS.items()
        if facts.implemented
    }
    imputers = (
        (
            f"`{imputer.name}`",
            who,
            imputer.gives,
            ", ".join(f"`{SUFFIXES[when]}`" for when in imputer.calibrated if SUFFIXES[when]),
        )
        for who, table in (("label party", LABEL_IMPUTERS), ("feature party", FEATURE_IMPUTERS))
        for imputer in table.values()
    )
    parts = [
        "# Methods, from the code",
        "A contract can name these methods. Defences stand with the "
        "[public names](python-names.md#defences), attacks have [a page of their own](attacks.md).",
        "## Ways of linking rows",
        "[Which alignment to choose](../explanation/alignments.md) explains them; `alignment.method` names one.",
        _table(("method", "feature parties", "helper", "rests on", "what a peer gains that deviates"), linkages),
        "## Rows without a partner's row",
        "[Use rows without a partner's row](../howto/use-rows-without-a-partner.md) says which to choose; `unaligned.method` "
        "names one. With `none`, they are left out. Their scores come from a model of the label party's own columns, which is "
        "trained last, on all own rows: the network that the label party would train without a partner. Its columns that say "
        "nothing are closed, and where the split is by time it is refitted with the validation rows. "
        f"From {LEAST_FOLDED} to {FULL_ALONE - 1:,} own training rows it is {FOLDS} networks, each "
        "without a fold of them, and the mean of their logits, where the split is by hash and `training.folds` is `auto`. With "
        "`average` they get the mean of its logit and those of that method's two branches. A "
        "line that is fitted on unaligned validation rows, before a refit, makes these scores probabilities. The training loss "
        "in the report contains the loss of tops that a method adds, so do not compare it with the validation loss.",
        _table(("method", "what it does with them"), ((f"`{name}`", _inline(f.what)) for name, f in UNALIGNED_METHODS.items())),
    ]
    for name, module in unaligned.items():
        method = getattr(module, UNALIGNED_METHODS[name].implemented.split(".")[1])
        parts += [f"### `{name}`", *_paragraphs(inspect.getdoc(method) or "")]
    synthesis = importlib.import_module("tallystick.training.unaligned.synthesis").Synthesis
    parts += [
        "### Synthesis: `heuristic`, `regressor` and `diffu-at`",
        *_paragraphs(inspect.getdoc(synthesis) or ""),
        "## Imputers of a union",
        "[Unions](../explanation/unions.md) says what each leaks; `union.labels` and `union.features` name one, with the ending "
        "of a [calibration](../explanation/unions.md#calibration). A foil is there for comparison, and protects nothing.",
        _table(("imputer", "who", "what a row gets that the side lacks", "calibration"), imputers),
        "## Merges of links",
        "[Linking by similar keys](../explanation/linking.md) explains them; `model.merge.method` names one.",
    ]
    for name, merge in MERGES.items():
        parts += [f"### `{name}` merge", *_paragraphs(inspect.getdoc(merge) or "")]
    parts += [
        "## Mechanisms of a private AUC",
        "[Private evaluation](../explanation/private-evaluation.md) says which is taken.",
    ]
    for name, mechanism in MECHANISMS.items():
        parts += [f"### `{name}` mechanism"]
        if isinstance(protects := vars(mechanism).get("protects"), str):
            parts.append(f"Protects {protects}. Reveals besides the AUC: {_inline(vars(mechanism)['reveals'])}.")
        parts += ["A release may pick it by itself."] if getattr(mechanism, "picked", False) else []
        first, *others = _paragraphs(inspect.getdoc(mechanism) or "")
        parts += [first, *filter(_promises, others)]
    return "\n\n".join(parts) + "\n"


def protocols() -> str:
    """Return the page of every protocol, as its module says it."""
    parts = [
        "# Protocols, from the code",
        "Read this page beside the code. "
        "[Which alignment to choose](../explanation/alignments.md) says what each alignment tells the parties, and "
        "[protocols of alignment](alignment-protocols.md) what deviating peers do.",
    ]
    for title, modules in PROTOCOLS.items():
        parts.append(f"## {title}")
        for name in modules:
            module = importlib.import_module(f"tallystick.{name}")
            parts += [f"### `{name.replace('.', '/')}.py`", *_paragraphs(inspect.cleandoc(module.__doc__ or ""))]
            parts += [paragraph for said in _said(module, _promises) for paragraph in said]
    parts += [
        "## Building blocks",
        "The protocols above are made of these modules. Each docstring has its steps, its sizes and its proof.",
        "\n".join(
            f"- `src/tallystick/{name.replace('.', '/')}.py`: {_first(importlib.import_module(f'tallystick.{name}'))}"
            for name in BLOCKS
        ),
    ]
    return "\n\n".join(parts) + "\n"


def rules() -> str:
    """Return the page of how tables become tensors and of what is kept, as the modules say it."""
    parts = [
        "# Rules, from the code",
        "[Tables](data.md) is the page to begin with.",
    ]
    for title, modules in RULES.items():
        parts.append(f"## {title}")
        for name in modules:
            module = importlib.import_module(f"tallystick.{name}")
            parts += [f"### `{name.replace('.', '/')}.py`", *_paragraphs(inspect.cleandoc(module.__doc__ or ""))]
            told_by_module = len((module.__doc__ or "").split()) > ENOUGH_WORDS
            wanted = _promises if told_by_module else lambda doc: len(doc.split()) > FEW_WORDS
            parts += [paragraph for said in _said(module, wanted) for paragraph in said]
    return "\n\n".join(parts) + "\n"


def _promises_or_arguments(paragraph: str) -> bool:
    return paragraph.startswith(("Args:\n", "Threat model", "- ")) or "our own reading" in paragraph or _promises(paragraph)


def _promises(doc: str) -> bool:
    return "Threat model:" in doc or "No formal guarantee" in doc


def _said(module: ModuleType, wanted: Callable[[str], bool]) -> Iterator[list[str]]:
    """Yield what the module's own public functions and classes say, those that are wanted: without arguments and errors."""
    for name, found in vars(module).items():
        doc = inspect.getdoc(found) or ""
        if getattr(found, "__module__", None) != module.__name__ or name.startswith("_") or isinstance(found, TypeVar):
            continue
        said = re.split(r"\n+(?:Args:|Raises )", doc)[0]
        if inspect.getdoc(found) and wanted(said):
            first, *others = _paragraphs(said)
            yield [f"`{name}`: {first}", *others]


def _paragraphs(doc: str) -> Iterator[str]:
    """Return the paragraphs of a docstring as Markdown: lists, what is drawn with spaces, and prose."""
    for paragraph in doc.split("\n\n"):
        if paragraph.startswith("Shapes:"):
            continue
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            yield f"```text\n{textwrap.dedent(paragraph)}\n```"
        elif "\n- " in f"\n{paragraph}":
            head, *items = re.split(r"(?:^|\n)- ", paragraph)
            yield from [_inline(head)] if head.strip() else []
            yield "\n".join(f"- {_inline(item)}" for item in items)
        else:
            yield _inline(paragraph)


def _entry(name: str, what: Any) -> str:
    parts = [f"### `{name}`"]
    if inspect.isfunction(what):
        parts.append(f"```python\n{name}{_signature(what)}\n```")
    parts.append(_markdown(inspect.getdoc(what) or ""))
    if inspect.isclass(what):
        fields = getattr(what, "__struct_fields__", None) or getattr(what, "model_fields", ())
        fields = fields or (what.__annotations__ if is_typeddict(what) else ())
        parts += ["Fields: " + ", ".join(f"`{field}`" for field in fields) + "."] if fields else []
        parts += [f"- `{member}`: {_first(found)}" for member, found in _members(what)] if name not in FILES else []
    return "\n\n".join(parts).replace("\n\n- ", "\n- ").replace(".\n- ", ".\n\n- ", 1)


def _members(what: type) -> Iterable[tuple[str, Any]]:
    """Methods and properties of the class itself that have a docstring, in the order of the source."""
    for name, found in vars(what).items():
        if not name.startswith("_") and (inspect.isfunction(found) or isinstance(found, property)) and inspect.getdoc(found):
            yield (f"{name}()" if inspect.isfunction(found) else name), found


def _signature(function: Any) -> str:
    """Write the signature, a line per parameter where it is long; annotations without the modules they come from."""
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
    """Return the first paragraph of the docstring."""
    return _inline((inspect.getdoc(what) or "").split("\n\n")[0])


def _settings(attack: Any) -> str:
    """In what an attack differs from its class's defaults."""
    found = {field.name: getattr(attack, field.name) for field in fields(attack) if getattr(attack, field.name) != field.default}
    return "".join(f" `{name} = {value!r}`." for name, value in found.items())


def _markdown(doc: str) -> str:
    """Write a docstring as Markdown: paragraphs, lists, and a list of its arguments."""
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


def _words(name: str) -> str:
    return name.replace("_", " ") + "s"


def _inline(text: str) -> str:
    """Text in one line, with code as Markdown has it and nothing else that Markdown would read."""
    pieces = " ".join(text.split()).replace("``", "`").split("`")
    return "`".join(piece if index % 2 else re.sub(r"([*<\[\]|])", r"\\\1", piece) for index, piece in enumerate(pieces))


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


LEARNT = ("step", "the label party learns", "the feature party learns", "guarantee")


def threat_model() -> str:
    """Return the threat model with the table of what each side learns as the code has it; all else is written by hand."""
    page = (FOLDER.parent / "explanation" / "threat-model.md").read_text(encoding="utf-8")
    rows = ((row.name, row.label_party, row.feature_party, row.guarantee) for row in DISCLOSURES)
    before, rest = page.split(f"| {' | '.join(LEARNT)} |\n", 1)
    return f"{before}{_table(LEARNT, rows)}\n\n{rest.split(2 * chr(10), 1)[1]}"


PAGES = {"python-names.md": reference, "attacks.md": attacks, "methods.md": methods, "protocols.md": protocols, "rules.md": rules}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (FOLDER / page).write_text(write(), encoding="utf-8")
    (FOLDER.parent / "explanation" / "threat-model.md").write_text(threat_model(), encoding="utf-8")
