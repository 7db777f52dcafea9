"""Guess from a table's header which column is the key and which is the label. A person reads the guess."""

import re
from collections.abc import Sequence

from tallystick.config.templates import FoundColumns
from tallystick.tables.lazy_table import Frame
from tallystick.tables.text import as_text

_PERSON = (
    "customer|cust|client|cliente|clientid|member|account|acct|patient|subscriber|policy|person|subject|user|case|record"
    "|kunde|kunden|kd|mitglied|mitglieds|konto|vertrag|vertrags|patienten|personal|codice|numero|matricula|matricule"
)
KEY = re.compile(
    r"(.*[ _.-])?(id|key|uid|uuid|guid|email|e-mail|phone|ssn|iban|msisdn|cpf|nif|vin|pseudonym)"
    r"|id[ _.-].*|customer|client|kunde|cliente|member|matricule"
    rf"|({_PERSON})[ _.-]?(id|no|nr|num|number|nummer|code|cliente|client)|n[ _.-]client|.*[a-z]Id|.*[a-z]ID",
    flags=re.ASCII,
)
NAME = re.compile(r"(.*[ _.-])?(name|title|company)", flags=re.ASCII)
LABEL = re.compile(
    r"(.*[ _.-])?(label|target|y|class|outcome|response|default|defaulted|churn|churned|fraud|is_fraud|clicked|survived)"
    r"|default[ _.-].*",
    flags=re.ASCII,
)
MOST_CLASSES = 20


def guess_columns(frame: Frame, *, similar: bool, is_label: bool) -> FoundColumns:
    """Return the only column whose name looks like a key, and the only one that looks like a label. Return none if several or
    none do.

    Args:
        frame: the table. Only the label's cells are read, to distinguish classes from a number.
        similar: whether rows are linked by a text, such as a name, and not by a key.
        is_label: whether the table has a label.
    """
    names = tuple(frame.columns)
    key = _only(names, NAME if similar else KEY)
    label = _only([name for name in names if name != key], LABEL) if is_label else None
    classes: int | None = 2
    if label is not None:
        column = frame.get_column(label).drop_nulls()
        distinct = as_text(column).n_unique()
        is_number = column.dtype.is_float() or (column.dtype.is_numeric() and distinct > MOST_CLASSES)
        classes = None if distinct > 2 and is_number else max(distinct, 2)
    return FoundColumns(names=names, key=key, label=label, classes=classes)


def _only(names: Sequence[str], pattern: re.Pattern[str]) -> str | None:
    matches = [name for name in names if pattern.fullmatch(name) or pattern.fullmatch(name.lower())]
    return matches[0] if len(matches) == 1 else None
