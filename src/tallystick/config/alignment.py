"""Declare how a contract matches rows: one class for each ``alignment.method``, with its keys."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, Field

from tallystick.alignment.key_ids import MOST_KEYS
from tallystick.alignment.linkages import LINKAGES
from tallystick.alignment.terms import SimilarityConfig
from tallystick.reading import Model, Step, Text, Variant, WholeShare, shown, usual

MAX_IDS = 1_000_000_000


class KeyColumn(Model):
    """One column of the key by which rows are matched."""

    name: Text = Field(description="name of the key column in this contract; each party file maps it to its own column")
    normalise: tuple[Step, ...] = Field(
        default=(),
        description="steps, in the contract's order: trim (white space at both ends), lower, upper, nfkc (full-width letters "
        "and ligatures become plain ones), email (nfkc, lower, trim, domain xn--bcher-kva as bücher; dots and +tags stay), phone "
        "(digits and a leading +; 00 in front becomes +; (0) goes; an extension stays, as x12; no country code is guessed), "
        "digits (0 to 9, after nfkc). All but lower and upper drop invisible characters, such as zero-width ones",
    )


def _each_once(keys: tuple[KeyColumn, ...]) -> tuple[KeyColumn, ...]:
    names = [key.name for key in keys]
    if len(set(names)) != len(names):
        raise ValueError(f"must have each name once, found {shown(names)}")
    return keys


def _different(alternatives: tuple[tuple[str, ...], ...] | None) -> tuple[tuple[str, ...], ...] | None:
    for names in alternatives or ():
        if len(set(names)) != len(names):
            raise ValueError(f"must have each key once in an alternative, found {shown(list(names))}")
    if alternatives is not None and len({frozenset(names) for names in alternatives}) != len(alternatives):
        raise ValueError("must have each alternative once")
    return alternatives


_METHOD = "; ".join(f"{name}: {linkage.what}" for name, linkage in LINKAGES.items())

Protocol = Annotated[
    Literal["auto", "diffie-hellman", "oblivious-transfer"],
    Field(
        description="how common ids are found, or a union's members named; auto: Diffie-Hellman for up to some thousand ids of "
        "two parties together (for an intersection, the line's speed counts, too), else oblivious transfer, which is much faster"
    ),
]
KeyColumns = Annotated[
    tuple[KeyColumn, ...],
    Field(min_length=1, description="key columns, in the order in which they are joined"),
    AfterValidator(_each_once),
]
Alternatives = Annotated[
    tuple[Annotated[tuple[Text, ...], Field(min_length=1)], ...] | None,
    Field(
        min_length=2,
        max_length=MOST_KEYS,
        description="alternative keys, the most trusted first; each is a list of names from keys, which are joined. Two rows "
        "are linked if the first alternative that both have is equal, and never by a later one. Then nulls applies to rows "
        "without any alternative, and duplicates to a value in several rows. null: all keys must be equal",
    ),
    AfterValidator(_different),
]
Nulls = Annotated[Literal["drop", "error"], Field(description="rows with a null in any key column: leave them out, or stop")]
Duplicates = Annotated[
    Literal["first", "drop", "error"],
    Field(
        description="rows with the same key: keep the first, leave all of them out, or stop. To keep all is not possible, "
        "because their number would show a feature party which of its ids are common; the label party's file may say under "
        "repeats which row counts"
    ),
]
MostRows = Annotated[
    int | None,
    Field(
        strict=True,
        ge=1,
        le=MAX_IDS,
        description="limit of ids that any party may bring to the alignment; null lets each party accept ten times its own, "
        "and at least 100,000; set it if one side is much larger",
    ),
]
LeastMatchRate = Annotated[
    WholeShare,
    Field(description="least share of the label party's ids that all parties have; with fewer the run ends before training"),
]


@dataclass(frozen=True, kw_only=True)
class AnyKey:
    """One of several keys that may link a row: its name, and the columns that it joins."""

    name: str
    columns: tuple[KeyColumn, ...]


class AlignmentKeys(Variant):
    """Base of the methods of matching rows."""

    @property
    def leaves_unlinked(self) -> bool:
        """Tell whether rows are linked by similarity and some rows may have no link."""
        return False


class IntersectionConfig(AlignmentKeys):
    """Matching of the rows that all parties have."""

    method: Literal["intersection"] = Field(default="intersection", description=_METHOD)
    protocol: Protocol = "auto"
    security: Literal["semi-honest", "malicious"] = Field(
        default="semi-honest",
        description="peers that it withstands: those that follow the protocol, or also cheating ones, for about twice the "
        "processor time and messages, by a protocol without outside review; a cheating peer can bring 50 ids more than it "
        "says, or 1.36 times as many if it says more than 4,096",
    )
    keys: KeyColumns
    alternatives: Alternatives = None
    nulls: Nulls = "drop"
    duplicates: Literal["first", "all", "drop", "error"] = Field(
        default="first",
        description="rows with the same key: keep the first; keep all of the label party's, each joined with the others' row of "
        "its key; leave all of them out; or stop",
    )
    max_rows: MostRows = None
    min_match_rate: LeastMatchRate = 0.0

    similarity: ClassVar[None] = None

    @property
    def any_of(self) -> tuple[AnyKey, ...]:
        """Return the alternative keys, the most trusted first. It is empty if all keys must be equal."""
        by_name = {key.name: key for key in self.keys}
        return tuple(
            AnyKey(name=" + ".join(names), columns=tuple(by_name[name] for name in names)) for names in self.alternatives or ()
        )


class UnionOfTwoConfig(AlignmentKeys):
    """Matching on a union: every row of any of two parties takes part.

    All rows of one key never take part, because their number would tell the feature party which of its ids are common.
    """

    method: Literal["union"] = Field(description=_METHOD)
    protocol: Protocol = "auto"
    keys: KeyColumns
    nulls: Nulls = "drop"
    duplicates: Duplicates = "first"
    max_rows: MostRows = None
    min_match_rate: LeastMatchRate = 0.0

    security: ClassVar[Literal["semi-honest"]] = "semi-honest"
    any_of: ClassVar[tuple[AnyKey, ...]] = ()
    similarity: ClassVar[None] = None


class UnionByHelperConfig(AlignmentKeys):
    """Matching on a union through a helper."""

    method: Literal["union-with-helper"] = Field(description=_METHOD)
    keys: KeyColumns
    nulls: Nulls = "drop"
    duplicates: Duplicates = "first"
    max_rows: MostRows = None
    min_match_rate: LeastMatchRate = 0.0

    protocol: ClassVar[Literal["auto"]] = "auto"
    security: ClassVar[Literal["semi-honest"]] = "semi-honest"
    any_of: ClassVar[tuple[AnyKey, ...]] = ()
    similarity: ClassVar[None] = None


class SimilarKeysConfig(AlignmentKeys):
    """Linking of rows by similar keys, through a helper. Every row is linked, so no rule has to choose between rows of a key."""

    method: Literal["similarity"] = Field(description=_METHOD)
    similarity: SimilarityConfig = Field(description="how rows are linked by similar keys")
    nulls: Nulls = "drop"
    max_rows: MostRows = None
    min_match_rate: LeastMatchRate = 0.0

    protocol: ClassVar[Literal["auto"]] = "auto"
    security: ClassVar[Literal["semi-honest"]] = "semi-honest"
    any_of: ClassVar[tuple[AnyKey, ...]] = ()
    keys: ClassVar[tuple[KeyColumn, ...]] = ()
    duplicates: ClassVar[Literal["first"]] = "first"

    @property
    def leaves_unlinked(self) -> bool:
        """Tell whether some rows may have no link."""
        return self.similarity.least_similarity is not None


AlignmentConfig: TypeAlias = Annotated[
    IntersectionConfig | UnionOfTwoConfig | UnionByHelperConfig | SimilarKeysConfig,
    Field(discriminator="method"),
    usual("method", "intersection"),
]
