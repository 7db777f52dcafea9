"""Say in sentences what leaked: whether a party could read labels, columns or keys, and what a guarantee bounds."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from tallystick.report.formats import number, quantity
from tallystick.report.summary import party_names
from tallystick.results import (
    AttackResult,
    Audit,
    ColumnsFromGradients,
    FeatureAudit,
    LinkageSummary,
    LocatedKeys,
    MeanRebuilt,
    NamedKeys,
    RebuiltColumn,
    Result,
    RowGroup,
    above_guess,
)

Finding = TypeVar("Finding")

NEITHER, A_LITTLE, YES = 0, 1, 2  # verdicts
MUCH = 0.1  # above a guess
SURE, LIKELY = 0.01, 0.05  # chances of a wrong "yes", or "a little", for labels that have nothing to do with what crossed
DEGREES = 30  # degrees of freedom of Student's quantiles here, because with few rows the errors are estimates, too
NOTED = 0.02  # a probe that finds this much more than any attack is reported
AS_FAR = 0.01  # above a guess: attacks that are this close to each other are ordered by what they must know
WHICH_WAY = " (told the direction of its scores)"
SLIGHT = 0.01  # for a column: a draw of known rows may give this much by chance
TRAINING_ROWS = "training rows"
QUICK = " This is of a quick audit: a full one (audit: true) runs more attacks and may find more."
NOTHING_SENT = "No: nothing that depends on a label was sent, so there is nothing to attack."


def by_strength(attacks: Sequence[AttackResult], *, attack_count: int | None = None) -> list[AttackResult]:
    """Order label attacks by how far they are above a guess. Among equally strong ones, the one that needs least comes first.

    The attack of the headline comes first; attacks that need labels nobody has come last.
    """

    def turn(attack: AttackResult) -> tuple[bool, float, float, float]:
        value = strength(attack)
        return attack.upper_bound, -(value if math.isinf(value) else round(value / AS_FAR)), _known(attack), -value

    ordered = sorted(attacks, key=turn)
    runnable = [each for each in ordered if _runnable(each)]
    if not runnable:
        return ordered
    first = least_knowing(
        runnable,
        figures=lambda each: (strength(each),),
        known=_known,
        verdict=lambda each: _verdict_on_labels(each, attack_count=attack_count or len(runnable)),
        as_far=AS_FAR,
    )
    return [first, *(each for each in ordered if each is not first)]


def least_knowing(
    findings: Sequence[Finding],
    *,
    figures: Callable[[Finding], tuple[float, ...]],
    known: Callable[[Finding], int],
    verdict: Callable[[Finding], int] = lambda _: 0,
    as_far: float = NOTED,
) -> Finding:
    """Return the finding for a headline: of those about as strong as the strongest, the one that needs least.

    The strongest has the most serious verdict (``YES``, ``A_LITTLE``, or neither), then the largest first figure. About as strong
    means that the verdict is the same, and that no figure is smaller by more than ``as_far``. Among attackers that know equally
    much, the stronger one is chosen. So no finding of a table has a more serious verdict than its headline.
    """
    strongest = max(findings, key=lambda each: (verdict(each), *figures(each)))
    as_much = [
        each
        for each in findings
        if verdict(each) == verdict(strongest)
        and all(mine >= most - as_far for mine, most in zip(figures(each), figures(strongest), strict=True))
    ]
    return min(as_much, key=lambda each: (known(each), *(-figure for figure in figures(each))))


def _known(attack: AttackResult) -> int:
    """Return how many labels an attack needs to know, from the words of its view.

    A share of the labels, and some in every batch, count as more than any number.
    """
    knowing = attack.view.partition(", knowing ")[2].split(" ")[0]
    return int(knowing) if knowing.isdigit() and "every batch" not in attack.view else 0 if knowing in ("", "no") else 10**9


def strength(attack: AttackResult) -> float:
    """Return how far above a guess an attack separates classes, in either direction; minus infinity if it has no value.

    0.5 is certainty: an AUC of 1, or of 0, whose scores only need to be reversed; for numbers a rank correlation of 1.
    """
    if attack.spearman is not None:
        return (attack.spearman - attack.spearman_chance) / (2 * max(1 - attack.spearman_chance, 1e-9))
    if attack.auc is None:
        return -math.inf
    value, chance, _ = reported_auc(attack)
    return above_guess(value, chance)


def reported_auc(attack: AttackResult) -> tuple[float, float, float | None]:
    """Return the AUC to report, the AUC of a guess, and the low end of the interval.

    Scores count in the better direction if that makes a noticeable difference, otherwise as given.
    """
    assert attack.auc is not None, "an attack on classes has an AUC"
    if is_reversed(attack):
        assert attack.symmetric_auc is not None, "the scores are reversed"
        return attack.symmetric_auc, attack.symmetric_chance, attack.symmetric_low
    return attack.auc, attack.chance, attack.low


def is_reversed(attack: AttackResult) -> bool:
    """Tell whether an attack finds noticeably more if the direction of its scores is known, which is one bit."""
    if attack.auc is None or attack.symmetric_auc is None:
        return False
    return above_guess(attack.symmetric_auc, attack.symmetric_chance) > above_guess(attack.auc, attack.chance) + NOTED


def leak_headline(audit: Audit) -> list[str]:
    """Say first whether labels leak: the strongest possible attack on each kind of view, and what it must know."""
    lines = []
    if audit.nothing_sent:
        return [NOTHING_SENT]
    for kind in ("gradients", "embeddings"):
        count = sum(_runnable(each) for each in audit.attacks)
        every = by_strength([each for each in audit.attacks if f"from cut {kind}" in each.view], attack_count=count)
        attacks = [each for each in every if _runnable(each)]
        if attacks:
            unaided = next((each for each in attacks if each.view.endswith("knowing no label")), attacks[0])
            without = ""
            if unaided is not attacks[0] and strength(unaided) >= MUCH and unaided.spearman is None:
                way = ", told the direction of its scores" if is_reversed(unaided) else ""
                without = f" Without knowing any label: AUC {number(reported_auc(unaided)[0], digits=3)} ({unaided.title}{way})."
            alone = next((each for each in attacks if each.reads == "cut gradients"), None)
            by_gradients = ""
            # A strongest attack on both kinds of views may take its finding from embeddings
            if attacks[0].reads == "cut gradients and cut embeddings" and alone is not None and alone.auc is not None:
                by_gradients = f" Through gradients alone: AUC {number(reported_auc(alone)[0], digits=3)} ({alone.title})."
            sentence = _leak_through(kind, attacks[0], attack_count=count) + by_gradients + without
            # A reader must not take the strongest attack's figure for everything that leaked
            beyond = ""
            probe = max((each for each in every if each.upper_bound), key=strength, default=attacks[0])
            if strength(probe) >= strength(attacks[0]) + NOTED and probe.auc is not None:
                _, _, knowing = probe.view.partition(", knowing ")
                where = " from both together" if probe.reads == "cut gradients and cut embeddings" else ""
                reached = number(reported_auc(probe)[0], digits=3)
                beyond = f" More can be found{where}: AUC {reached} by somebody who knows {knowing} ({probe.title})."
            lines.append(sentence + beyond)
        elif audit.not_measured:
            lines.append(f"Through cut {kind}: not measured, so nothing is known about it; the reasons are below.")
    return lines


def leak_lines(result: Result) -> list[str]:
    """Say what the gain cost, one line for each side's secret: how well it can be read, or that this was not measured."""
    sections = result.sections
    trained = result.training is not None or bool(sections.features)  # nothing is known about the training of a fixed bottom
    if not trained or sections.sweep is not None or sections.tuning is not None or result.role == "helper":
        return []
    names = party_names(result)
    unknown = "not measured, so nothing is known about it."
    lines = []
    if result.role in ("label", None):
        lines_of_party = (
            [each for each in by_strength(sections.leakage.attacks) if _runnable(each)] if sections.leakage is not None else []
        )
        price = f"What {names.feature} could read of {names.label}'s labels:"
        none = "nothing from this run, because nothing that depends on a label was sent. It can still guess from its own columns."
        is_exposed = sections.leakage is None or not sections.leakage.nothing_sent
        line = f"{price} {_read_with(lines_of_party[0]) if lines_of_party else unknown if is_exposed else none}"
        lines.append(line + of_form(sections.leakage))
    if result.role in ("feature", None):
        of = names.feature if result.party is None else result.party
        audits = {audit.party: audit for audit in sections.features}
        lines += [feature_headline(audit) + of_form(audit) for audit in audits.values()]
        if not audits:
            lines.append(f"What {names.label} could rebuild of {of}'s columns: {unknown}")
    return lines


def of_form(audit: Audit | FeatureAudit | None) -> str:
    """Say that attacks were left out, if any were, for a headline without the list of what was not measured."""
    return QUICK if audit is not None and audit.quick else ""


def _read_with(attack: AttackResult) -> str:
    if attack.spearman is not None:
        return f"{_ranking(attack)} ({attack.title}, {attack.view.partition(', ')[2].rpartition(', ')[2]})."
    value, chance, _ = reported_auc(attack)
    knowing = attack.view.partition(", knowing ")[2] + (WHICH_WAY if is_reversed(attack) else "")
    how = f"{attack.title}, knowing {knowing}" if knowing else attack.title
    return f"the classes, with AUC {number(value, digits=3)}, where a guess gives {number(chance, digits=3)} ({how})."


def feature_headline(audit: FeatureAudit) -> str:
    """Say first whether a feature party's columns can be rebuilt: on average and for the worst column, and by which attacker.

    The strongest figure counts. Among figures within .02 of it, the one whose attacker needs to know fewest rows is chosen.
    """
    measured = [group for group in row_groups(audit) if group.means]
    if not measured:
        return f"Whether {audit.by} could rebuild columns of {audit.party} was not measured, so nothing is known about it."
    measured_means = [(group, mean, _best_rebuilt(group, mean)) for group in measured for mean in group.means]
    group, mean, column = least_knowing(
        measured_means,
        figures=lambda each: (each[1].value, each[2].value),
        known=lambda each: each[1].known,
        verdict=lambda each: _verdict_on_column(each[2].value, each[2].luck),
    )
    who = f"{audit.by}, knowing {f'the columns of {mean.known} rows' if mean.known else 'no row'},"
    of = f"{column.name!r}{'' if column.used else ', which the model was not given'} ({column.attack})"
    # Never round up to a whole column.
    mean_text, worst = (number(min(each, 0.999) if each < 1 else each, digits=3) for each in (mean.value, column.value))
    rows = "rows" if group.rows == TRAINING_ROWS else group.rows
    what = f"the columns of other {rows}: {mean_text} on average, {worst} of {of}. 0 is a guess, 1 is exact."
    if _verdict_on_column(column.value, column.luck) == YES:
        return f"Through {audit.through}, yes: {who} can rebuild {what}"
    if _verdict_on_column(column.value, column.luck) == A_LITTLE:
        return f"Through {audit.through}, a little: {who} can rebuild {what}"
    return (
        f"Through {audit.through}, no attack here found more of any column than a guess would: {who} got at most {worst} of one. "
        "0 is a guess, 1 is exact. Another attack may find more."
    )


def gradients_headline(audit: ColumnsFromGradients) -> str:
    """Say how much more of a party's columns can be rebuilt with cut gradients than without them.

    The largest gain counts. Among gains within .02 of it, the one whose attacker needs to know fewest rows is chosen.
    """
    both = [(mean, other) for mean in audit.means for other in audit.means_without if mean.known == other.known]
    if not both:
        return f"Through cut gradients: whether {audit.by} could rebuild columns of {audit.party} was not measured."
    before = {(each.name, each.known): each.value for each in audit.without}

    def gained(column: RebuiltColumn) -> float:
        return column.value - max(0.0, before.get((column.name, column.known), 0.0))

    gains = []
    for mean, other in both:
        of_count = [each for each in audit.columns if each.known == mean.known]
        column = max(of_count, key=lambda each: (_verdict_on_column(gained(each), each.luck), gained(each)))
        gains.append((mean, other, column, gained(column)))
    mean, other, column, gain = least_knowing(
        gains,
        figures=lambda each: (each[0].value - each[1].value, each[3]),
        known=lambda each: each[0].known,
        verdict=lambda each: _verdict_on_column(each[3], each[2].luck),
    )
    unaided = before.get((column.name, column.known))
    figures = (
        f"{number(mean.value, digits=3)} of the columns of other rows on average, {number(other.value, digits=3)} without "
        f"gradients; most for {column.name!r}: {number(column.value, digits=3)}, and {number(unaided, digits=3)} without"
    )
    who = f"{audit.by}, knowing the columns of {mean.known} rows,"
    if _verdict_on_column(gain, column.luck) == YES:
        return f"Through cut gradients, yes: {who} can rebuild {figures}."
    if _verdict_on_column(gain, column.luck) == A_LITTLE:
        return f"Through cut gradients, a little: {who} can rebuild {figures}."
    return f"Through cut gradients, no attack here found more of {audit.party}'s columns than without: {who} {figures}."


def columns_with_and_without(
    audit: ColumnsFromGradients,
) -> list[tuple[str, dict[int, RebuiltColumn], dict[int, RebuiltColumn]]]:
    """List each column with its figures by number of known rows, with gradients and without, the most revealed first."""
    by_name: dict[str, tuple[dict[int, RebuiltColumn], dict[int, RebuiltColumn]]] = {}
    for place, columns in enumerate((audit.columns, audit.without)):
        for column in columns:
            by_name.setdefault(column.name, ({}, {}))[place][column.known] = column
    ordered = sorted(by_name.items(), key=lambda item: -max((each.value for each in item[1][0].values()), default=0.0))
    return [(name, by_count, before) for name, (by_count, before) in ordered]


def row_groups(audit: FeatureAudit) -> list[RowGroup]:
    """Return the findings for each group of rows by how they crossed, those of training steps first."""
    return [RowGroup(rows=TRAINING_ROWS, attacked=0, crossed=0, columns=audit.columns, means=audit.means), *audit.groups]


def _best_rebuilt(group: RowGroup, mean: MeanRebuilt) -> RebuiltColumn:
    """Return the column that is rebuilt best with this many known rows; one beyond luck if there is one."""
    every = [each for each in group.columns if each.known == mean.known]
    return max([each for each in every if each.value > each.luck] or every, key=lambda each: each.value)


def next_steps(result: Result) -> list[str]:
    """Say what can be done about a party's own secret if it leaked much: a line for labels, one for columns."""
    sections = result.sections
    if sections.sweep is not None:
        return []
    lines = []
    attacks = [each for each in by_strength(sections.leakage.attacks) if _runnable(each)] if sections.leakage is not None else []
    if attacks and strength(attacks[0]) >= MUCH:
        ways, numbers = [], attacks[0].spearman is not None
        if not str(result.contract.summary.get("alignment")).startswith("union"):
            shown_by = "`tallystick audit CONTRACT --party PARTY --sweep no-gradients=512`"
            price = "" if numbers or attacks[0].label else f" ({shown_by} shows its cost)"
            ways.append(f"`training.gradients: none` sends nothing that depends on a label{price}")
        if not numbers and not promise(result):
            ways.append("`label-dp` among `defense` bounds what is sent")
        lines += [f"About labels: {', and '.join(ways)}."] if ways else []
    read = [
        audit
        for audit in sections.features
        if any(_verdict_on_column(column.value, column.luck) == YES for group in row_groups(audit) for column in group.columns)
    ]
    if read and result.contract.summary.get("cut gradients") == "shared":
        lines.append(
            "About columns: agree on every label, and let `privacy.scores_per_row` in the party file bound how many scores of a "
            "row are ever opened. `drop` there keeps a column out of training, which costs accuracy."
        )
    elif read:
        ways = ["`drop` in the party file keeps a column out of training"]
        if not str(result.contract.summary.get("alignment")).startswith(("union", "similarity")):
            ways.append("`training.gradients: shared` hides columns in training, with a helper (docs/howto/train-on-shares.md)")
        if any(audit.epsilon is None for audit in read):
            ways.append("`gaussian-embeddings` among `defense` bounds what a row's own embeddings reveal")
        lines.append(f"About columns: {', and '.join(ways)}. This costs accuracy.")
    return lines


def _verdict_on_column(value: float, luck: float) -> int:
    """Judge a figure of a column."""
    if value >= MUCH and value > luck:
        return YES
    return A_LITTLE if value > max(SLIGHT, luck) else NEITHER


def _verdict_on_labels(attack: AttackResult, *, attack_count: int) -> int:
    """Judge the best of this many attacks on labels."""
    if strength(attack) >= MUCH and _beyond_luck(attack, attack_count=attack_count, risk=SURE):
        return YES
    return A_LITTLE if _beyond_luck(attack, attack_count=attack_count, risk=LIKELY) else NEITHER


def column_promise(audit: FeatureAudit) -> str:
    """Say what the epsilon of noisy embeddings bounds and what it does not, to stand next to it and to what attacks rebuilt."""
    if audit.epsilon is None:
        return ""
    most = number(most_auc(audit.epsilon, audit.delta), digits=3)
    return (
        f"ε = {audit.epsilon:.3g} (δ = {audit.delta:.2g}) bounds how much a change of one row's columns can change that row's "
        f"own embeddings, given the bottom model at each. It covers all embeddings of a row that this run sent in training, "
        f"validation and evaluation, at most {audit.releases}. That alone lets somebody who "
        f"knows everything else tell two values of a row apart with an AUC of up to {most}. It does not bound what the model "
        "learnt from these columns, which shapes everything sent, nor what embeddings reveal about rows on average. The attacks "
        "here rebuilt some of that, and others may rebuild more."
    )


def columns_by_name(audit: FeatureAudit | RowGroup) -> list[tuple[str, bool, dict[int, RebuiltColumn]]]:
    """List each column with its figures by number of known rows, the worst first, unused columns last."""
    by_name: dict[tuple[str, bool], dict[int, RebuiltColumn]] = {}
    for column in audit.columns:
        by_name.setdefault((column.name, column.used), {})[column.known] = column
    ordered = sorted(by_name.items(), key=lambda item: (not item[0][1], -max(each.value for each in item[1].values())))
    return [(name, used, by_count) for (name, used), by_count in ordered]


def promise(result: Result) -> str:
    """Say what the ε of the training labels bounds and what it does not, to stand next to that ε and to an attack's AUC."""
    released = (
        [each for each in result.sections.privacy.releases if each.what.startswith("labels")] if result.sections.privacy else []
    )
    if not released:
        return ""
    epsilon, delta = sum(each.epsilon for each in released), sum(each.delta for each in released)
    but = f", except with a chance of δ = {delta:.2g}" if delta else ""
    times, most = math.exp(min(epsilon, 700)), number(most_auc(epsilon, delta), digits=3)
    return (
        f"ε = {epsilon:.3g} bounds how much a change of one label can change what is sent: nothing becomes more than "
        f"e^ε = {times:.3g} times as likely{but}. That alone lets somebody who knows everything else tell two values of a "
        f"label apart with an AUC of up to {most}. ε does not bound what the features reveal about the label. "
        "The model learns that from other people's labels, which is its purpose. "
        "So it tells the classes apart even for a person whose label was never used. An attack's AUC "
        f"counts both: {epsilon:.3g}-label-DP and a high AUC do not contradict each other."
    )


def most_auc(epsilon: float, delta: float = 0.0) -> float:
    """Return the largest AUC of any test between two neighbours under (ε, δ)-DP, from the area under its trade-off curve.

    Kairouz et al. (2015), "The Composition Theorem for Differential Privacy", theorem 2.1: TPR <= e^ε FPR + δ, and the same for
    the complements. For δ = 0 the largest AUC is e^ε / (1 + e^ε), which randomised response reaches.
    """
    corner = (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700)))  # false positive rate at which the two bounds are equal
    rate = 1.0 - corner
    return (delta + rate) / 2 * corner + (rate + 1.0) / 2 * (1.0 - delta - corner) + delta


def plain(name: str) -> str:
    """Say what a label attack does, in a line, or nothing for an attack that is unknown here."""
    from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS

    return LABEL_INFERENCE_ATTACKS[name].description if name in LABEL_INFERENCE_ATTACKS else ""


def located_sentence(attack: LocatedKeys) -> str:
    """Say in a line how close one attack came to keys."""
    of = f" ({', '.join(attack.dimensions)})" if len(attack.dimensions) else ""
    bound = f", {attack.bounds:,} of them only to a bound" if attack.bounds else ""
    median, chance = quantity(attack.median, attack.unit), quantity(attack.chance, attack.unit)
    knowing = f", knowing {count} keys," if (count := _known_keys(attack.name)) else ""
    return (
        f"{attack.attacker}{knowing} could place keys of {attack.located}{of} by {attack.name} to within {median} "
        f"(median of {attack.placed:,}{bound}; a guess: {chance})"
    )


def linkage_headline(linkage: LinkageSummary) -> list[str]:
    """Say first who could locate whose keys, and how well: the strongest attack in each role, by its gain over a guess.

    Among attacks with the same gain, up to 2 %, the one that needs fewest known keys is chosen. Attacks that need none come
    first.
    """
    by_seat: dict[tuple[str, str, tuple[str, ...]], list[LocatedKeys]] = {}
    for attack in linkage.attacks:
        by_seat.setdefault((attack.attacker, attack.located, tuple(attack.dimensions)), []).append(attack)
    cheapest = []
    for attacks in by_seat.values():
        cheapest.append(
            least_knowing(
                attacks,
                figures=lambda each: (math.log(max(each.chance / max(each.median, 1e-12), 1e-12)),),
                known=lambda each: _known_keys(each.name),
            )
        )
    cheapest.sort(key=lambda each: _known_keys(each.name))
    return [f"{line}." for line in (*map(located_sentence, cheapest), *map(named_sentence, linkage.named))]


def named_sentence(attack: NamedKeys) -> str:
    """Say in a line how many text keys one attack named."""
    return (
        f"{attack.attacker}, with a list of all these texts, could name {attack.right:.1%} of {attack.named:,} keys of "
        f"{attack.located} by {attack.name} (a guess: {attack.chance:.1%})"
    )


def _known_keys(name: str) -> int:
    """Return how many keys an attack on a linkage must know; 0 for an attack that is unknown here."""
    from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS

    row = LINKAGE_ATTACKS.get(name)
    return row.known_keys if row is not None else 0


def linkage_attack(name: str) -> str:
    """Say what an attack on a linkage does, in a line, or nothing for an attack that is unknown here."""
    from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS
    from tallystick.attacks.linkage.texts import TEXT_ATTACKS

    row = LINKAGE_ATTACKS.get(name) or TEXT_ATTACKS.get(name)
    return row.description if row is not None else ""


def _runnable(attack: AttackResult) -> bool:
    return not attack.upper_bound and strength(attack) > -math.inf


def _ranking(attack: AttackResult) -> str:
    """Say how well the numbers are ranked, or which of them are judged separately."""
    ranked = f"{attack.note or 'the numbers'}, with a rank correlation (Spearman) of {number(attack.spearman, digits=3)}"
    guess = f"where a guess gives {number(attack.spearman_chance, digits=3)}"
    return f"{ranked}, {guess}; R² of the best straight line {number(attack.r_squared, digits=3)}"


def _beyond_luck(attack: AttackResult, *, attack_count: int, risk: float) -> bool:
    """Tell whether an attack, the best of ``attack_count``, is above a guess.

    ``risk`` is the chance that this is luck: the attack's interval is widened by Bonferroni.
    """
    if attack.spearman is None and attack.auc is None:
        return False
    ranks = attack.spearman is not None  # in either direction
    value, chance, low = (attack.spearman, 0.0, attack.spearman_low) if attack.spearman is not None else reported_auc(attack)
    ends = 2 if ranks or attack.symmetric_auc is not None else 1
    if low is None:
        return value > chance
    from scipy.special import ndtri, stdtrit

    widened = stdtrit(DEGREES, 1 - risk / (ends * max(1, attack_count))) / ndtri(0.975)
    return bool(value - (value - low) * widened > chance)


def _leak_through(kind: str, attack: AttackResult, *, attack_count: int) -> str:
    if attack.spearman is not None:
        seat = attack.view.partition(", knowing ")[0]
        kind = "gradients and embeddings together" if seat.endswith(" and cut embeddings") else kind
        knowing = attack.view.partition(", knowing ")[2]
        direction = " (told which direction is up)" if knowing.startswith("no ") else ""  # known numbers show it
        who = f"{seat.partition(',')[0]}, knowing {knowing}{direction},"
        how = f"of {attack.rows:,} rows, {attack.title}: {plain(attack.name)}"
        if _verdict_on_labels(attack, attack_count=attack_count) == YES:
            return f"Through cut {kind}, yes: {who} can rank {_ranking(attack)} ({how})."
        if _verdict_on_labels(attack, attack_count=attack_count) == A_LITTLE:
            return f"Through cut {kind}, a little: {who} can rank {_ranking(attack)} ({how})."
        none = f"Through cut {kind}, no attack here found more than a guess would"
        return f"{none}: the strongest, by {who} ranks {_ranking(attack)} ({how})."
    value, chance, _ = reported_auc(attack)
    seat, _, knowing = attack.view.partition(", knowing ")
    if seat.endswith(" and cut embeddings"):  # its whole finding may come from embeddings
        kind = "gradients and embeddings together"
    knowing += WHICH_WAY if is_reversed(attack) else ""
    who = seat.partition(",")[0] + (f", knowing {knowing}," if knowing else "")
    how = f"{attack.title}: {plain(attack.name)}" if plain(attack.name) else attack.title
    reached = f"AUC {number(value, digits=3)}; a guess gives {number(chance, digits=3)} ({how})"
    if _verdict_on_labels(attack, attack_count=attack_count) == YES:
        return f"Through cut {kind}, yes: {who} can tell the classes apart with {reached}."
    if _verdict_on_labels(attack, attack_count=attack_count) == A_LITTLE:
        return f"Through cut {kind}, a little: {who} can tell the classes apart with {reached}."
    return f"Through cut {kind}, no attack here found more than a guess would: the strongest, by {who} has {reached}."
