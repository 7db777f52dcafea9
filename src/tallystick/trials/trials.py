"""Try a contract with one defence at one strength after the other, simulated on the label party's own data.

Every trial is a complete run with the code of a real one: alignment, training, evaluation, attacks.
"""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
from scipy.special import stdtrit

from tallystick import results
from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick.compute.task import Engine
from tallystick.config.contract import Contract, parse_contract
from tallystick.config.sections import WIDE_CUT
from tallystick.defenses.defense_table import DEFENSES, defense_named, installed_methods
from tallystick.errors import ComputeError, ConfigError, DataError
from tallystick.job.phases.report import contract_info, versions
from tallystick.metrics import METRICS
from tallystick.reading import did_you_mean
from tallystick.report.formats import duration
from tallystick.trials.partner import SimulatedPartner
from tallystick.trials.runs import Outcome, simulated_here, simulated_on
from tallystick.watcher import Watcher

_LEVEL = 0.95
FEWEST_FOR_STUDENT = 3  # runs
KNOWN_ROWS = max(KNOWN)
CUT_AFTER = "cut-after"
NO_GRADIENTS = "no-gradients"
"""Its strength is the width of the embeddings, which cross once."""
CUTS = {CUT_AFTER: "cut_after", "cut-width": "cut_width"}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A contract to try, with the name and strength of its defence."""

    defense: str
    strength: str = ""
    contract: Contract

    @property
    def name(self) -> str:
        """Return the defence and its strength."""
        return f"{self.defense} {self.strength}".strip()


def parse_sweep(text: str) -> tuple[str, tuple[float, ...]]:
    """Read ``label-dp=3,1``. Raises ConfigError for another form, an unknown method or a word that is not a number."""
    method, equals, values = text.partition("=")
    if not equals or not values.strip():
        raise ConfigError(f"--sweep {text}: must be METHOD=STRENGTH,STRENGTH,..., such as label-dp=3,1")
    if method not in CUTS and method != NO_GRADIENTS and defense_named(method) is None:
        methods = [*DEFENSES, *installed_methods(), *CUTS, NO_GRADIENTS]
        raise ConfigError(f"--sweep {text}: {method} is not a defence; {did_you_mean(method, methods)}")
    try:
        return method, tuple(float(value) for value in values.split(","))
    except ValueError:
        raise ConfigError(f"--sweep {text}: a strength is not a number; write {method}=1,2, for example") from None


def default_sweep(contract: Contract) -> list[tuple[str, tuple[float, ...]]]:
    """Return a default sweep: the guaranteed defence that the target allows, weak to strong, no gradients, each other cut depth.

    No defence of numbers has a guarantee for a whole run. Defences that our own pages break are tried only if named.
    """
    depths = tuple(float(depth) for depth in range(1, len(contract.model.hidden) + 1) if depth != contract.model.cut_after)
    guaranteed = [("label-dp", (3.0, 1.0))] if contract.target.type in DEFENSES["label-dp"].targets else []
    sweep: list[tuple[str, tuple[float, ...]]] = [(NO_GRADIENTS, (float(WIDE_CUT),)), *guaranteed]
    return [*sweep, (CUT_AFTER, depths)] if depths else sweep


def candidate_trials(
    contract: Contract, partner: SimulatedPartner, sweep: Sequence[tuple[str, Sequence[float]]]
) -> list[Candidate]:
    """List everything to try: no defence, the contract's own defences if it has some, and each part of the sweep separately.

    Raises ConfigError for a strength out of range or a defence that the target does not allow, before anything runs.
    """
    # The contract between the label party and its simulated partner, which has the built-in bottom model
    base = contract.model_dump(mode="json")
    base["training"] |= {"folds": 1}  # no defence works with several: all trials train in the same way
    model = base["model"] | {"bottoms": {k: v for k, v in contract.model.bottoms.items() if k == partner.label}}
    base |= {
        "parties": {partner.label: {"role": "label"}, partner.feature: {"role": "feature"}},
        "alignment": base["alignment"] | {"method": "intersection"},
        "unaligned": {},  # the simulated partner has every row
        "model": model,
        "training": base["training"] | {"gradients": "sent"},
        "tuning": {},
        "defense": [],
        "audit": True,
        "evaluation": base["evaluation"] | {"own_columns_baseline": False, "privacy": None, "bootstrap": 200},
    }
    candidates = [Candidate(defense="none", contract=_contract(base, "none"))]
    if contract.defense or not contract.sends_gradients:
        entries = [entry.model_dump(mode="json", exclude_none=True) for entry in contract.defense]
        own = " + ".join([NO_GRADIENTS] * (not contract.sends_gradients) + [entry.defense.method for entry in contract.defense])
        values = base if contract.sends_gradients else _without_gradients(base, contract.feature_model.cut_width)
        candidates.append(
            Candidate(defense="the contract's", strength=own, contract=_contract(values | {"defense": entries}, own))
        )
    for method, strengths in sweep:
        for strength in strengths:
            where = f"--sweep {method}={strength:g}"
            size = int(strength) if float(strength).is_integer() else strength
            if method in CUTS:
                changed = base | {"model": {**base["model"], CUTS[method]: size}}
            elif method == NO_GRADIENTS:
                changed = _without_gradients(base, size)
            else:
                defense = defense_named(method)
                assert defense is not None, "a sweep names a defence"
                changed = base | {"defense": [{"method": method, **defense.usual, defense.strength: size}]}
            candidates.append(Candidate(defense=method, strength=f"{strength:g}", contract=_contract(changed, where)))
    return candidates


def _without_gradients(base: dict[str, Any], cut_width: float | None) -> dict[str, Any]:
    """Derive the same contract without gradients: each embedding crosses once, with this width, and nothing that needs gradients
    is requested.
    """
    evaluation = base["evaluation"]
    return base | {
        "model": base["model"] | {"cut_width": cut_width},
        "training": base["training"] | {"gradients": "none", "mode": "synchronous"},
        "evaluation": evaluation | {"share_metrics": [], "importance": evaluation["importance"] | {"feature_columns": "none"}},
    }


def _contract(values: dict[str, Any], source: str) -> Contract:
    return parse_contract(values, source=source)


@dataclass(kw_only=True)
class _Tally:
    """Results of a candidate's runs so far, one per seed."""

    utility: list[tuple[float, float, float]] = field(default_factory=list)  # value, low, high
    leaks: dict[str, list[results.AttackResult]] = field(default_factory=dict)
    columns: list[float] = field(default_factory=list)  # means, if they could be measured

    def add(self, result: results.Result, metric: str) -> None:
        measured = result.joint[metric]
        assert measured["value"] is not None, "an outcome has the metric"
        self.utility.append(_within(measured["value"], measured["low"], measured["high"]))
        for attack in result.label_audit.attacks:
            self.leaks.setdefault(attack.name, []).append(attack)
        worst = [audit.worst_mean(KNOWN_ROWS) for audit in result.sections.features]
        self.columns += [value for value in worst if value is not None]

    def trial(self, candidate: Candidate) -> results.Trial:
        model = candidate.contract.model
        if not candidate.contract.sends_gradients:
            promises = ["nothing that depends on a label is sent, so no attack can read one"]
        elif candidate.defense == "cut-width":
            crosses = "1 number per row crosses" if model.cut_width == 1 else f"{model.cut_width} numbers per row cross"
            promises = [f"no formal guarantee: {crosses} the cut"]
        elif candidate.defense == CUT_AFTER:
            promises = [
                f"no formal guarantee: layer adjustment, {model.cut_after} of {len(model.hidden)} hidden layers below the cut"
            ]
        else:
            promises = [guarantee.text for guarantee in candidate.contract.defenses().guarantees()]
        return results.Trial(
            defense=candidate.defense,
            strength=candidate.strength,
            guarantee="; ".join(promises) or "no formal guarantee",
            utility=estimate(self.utility),
            leaks=[
                results.Leak(
                    attack=name,
                    reads=attacks[0].reads,
                    auc=estimate(
                        [
                            _within(attack.symmetric_auc, attack.symmetric_low, attack.symmetric_high)
                            for attack in attacks
                            if attack.symmetric_auc is not None  # every attack on labels has one
                        ],
                        floor=0.5,
                    ),
                    chance=float(np.mean([attack.symmetric_chance for attack in attacks])),
                    upper_bound=attacks[0].upper_bound,
                )
                for name, attacks in self.leaks.items()
            ],
            columns=estimate([(value,) * 3 for value in self.columns]) if len(self.columns) == len(self.utility) else None,
            seeds=len(self.utility),
        )


def _within(value: float, low: float | None, high: float | None) -> tuple[float, float, float]:
    """Return a value and its interval, or the value three times."""
    return value, value if low is None else low, value if high is None else high


def estimate(runs: Sequence[tuple[float, float, float]], *, floor: float = 0.0) -> results.Estimate:
    """Average over seeds with Student's interval, within [floor, 1]. For one run, a (value, low, high), return its bootstrap
    interval.

    For two runs the bounds are the smaller and the larger value: with one degree of freedom Student's interval is 13 times as
    wide as their distance, and would nearly always be the whole range.
    """
    if len(runs) == 1:
        value, low, high = runs[0]
        return results.Estimate(mean=value, low=low, high=high)
    values = np.array([value for value, _, _ in runs])
    mean = float(values.mean())
    if len(runs) < FEWEST_FOR_STUDENT:
        return results.Estimate(mean=mean, low=float(values.min()), high=float(values.max()), spread="min to max")
    half = float(stdtrit(len(values) - 1, (1 + _LEVEL) / 2) * values.std(ddof=1) / len(values) ** 0.5)
    return results.Estimate(mean=mean, low=max(mean - half, floor), high=min(mean + half, 1.0))


def sweep_defenses(
    contract: Contract,
    partner: SimulatedPartner,
    *,
    sweep: Sequence[tuple[str, Sequence[float]]] | None = None,
    seeds: int = 3,
    minutes: float = 30.0,
    engine: Engine | None = None,
    watcher: Watcher,
) -> results.Result:
    """Simulate the contract without a defence and with each of a sweep, attack every run, and compare utility with leakage.

    No guarantee: it says what these attacks find on these columns. A real partner's columns may reveal more about the label, or
    less. The label-DP trials are charged to a ledger that is discarded: nothing is sent.

    Args:
        contract: its defences are tried as well; a union is tried as an intersection, without unaligned rows.
        partner: tables and columns of both sides.
        sweep: methods and their strengths; by default a first look.
        seeds: runs of every candidate, which differ in split, weights, batches and noise; at least 1.
        minutes: after this time no run is begun, except the first of every candidate; above 0.
        engine: makes several runs at the same time; by default runs are made one after the other in this process.
        watcher: shown the progress.

    Raises ConfigError and DataError for unusable input, before the first run if that can be known. After the first trial it
    raises Interrupted for a KeyboardInterrupt, EngineLost for a ComputeError.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: must be at least 1")
    if not minutes > 0:
        raise ConfigError(f"--minutes {minutes:g}: must be above 0")
    if contract.target.is_number or contract.target.type == "multilabel":
        raise ConfigError(
            f"target.type = {contract.target.type}: a sweep compares how well one label's classes are told apart; run it with "
            "`audit: true` instead"
        )
    started, began = datetime.now(UTC).isoformat(), time.monotonic()
    candidates = candidate_trials(contract, partner, default_sweep(contract) if sweep is None else sweep)
    metric = next(iter(METRICS[contract.target.type]))
    plan = f"{len(candidates)} trials, {len(candidates) * seeds} runs with {seeds} seed{'s' if seeds > 1 else ''} each"
    until = f"none but the first of each begins after {minutes:g} minutes (--minutes)"
    until += "; --seeds 1 is a first look, in a fraction of the time" if seeds > 1 else ""
    watcher.say(f"{plan}; {until}: {', '.join(candidate.name for candidate in candidates)}")
    pace = _Pace(
        runs=seeds * len(candidates), of=len(candidates), until=began + 60 * minutes, at_once=engine.workers if engine else 1
    )
    numbers = pace.numbers()
    contracts = [candidate.contract for candidate in candidates]
    runs = simulated_here(contracts, partner, numbers) if engine is None else simulated_on(engine, contracts, partner, numbers)
    outcome = _run_all(candidates, runs, metric, pace=pace, watcher=watcher)
    if outcome.seeds < seeds and not outcome.interrupted:
        outcome.notes.append(
            f"Stopped after {minutes:g} minutes: some defences were tried with {outcome.seeds} of {seeds} seeds."
        )
    if not partner.kept:
        outcome.notes.append(
            f"All columns went to {partner.feature}: {partner.label} alone has none left, and can only guess without joining."
        )
    summary = results.Sweep(
        summary=_summary(contract, partner, [len(tally.utility) for tally in outcome.tallies if tally.utility]),
        metric=next(iter(METRICS[contract.target.type].values())).title,
        local_baseline=estimate(outcome.local_baseline) if outcome.local_baseline else None,
        known=KNOWN_ROWS,
        columns_not_measured=outcome.columns_not_measured,
        trials=[tally.trial(candidate) for candidate, tally in zip(candidates, outcome.tallies, strict=True) if tally.utility],
    )
    result = results.Result(
        run_id=f"audit-{contract.hash[:8]}",
        party=partner.label,
        parties=[results.PartyInfo(name=partner.label, role="label"), results.PartyInfo(name=partner.feature, role="feature")],
        contract=contract_info(contract),
        started=started,
        seconds=time.monotonic() - began,
        sections=results.Sections(sweep=summary, leakage=outcome.leakage, notes=outcome.notes),
        versions=versions(),
    )
    if outcome.lost is not None:
        raise EngineLost(result, outcome.lost) from outcome.lost
    if outcome.interrupted:
        raise Interrupted(result)
    return result


class EngineLost(ComputeError):
    """Raised if the trials' engine was lost. ``result`` holds the finished trials as a complete result."""

    def __init__(self, result: results.Result, why: ComputeError) -> None:
        super().__init__(str(why))
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Raised if the trials were interrupted. ``result`` holds the finished trials as a complete result."""

    def __init__(self, result: results.Result) -> None:
        super().__init__("interrupted between trials")
        self.result = result


@dataclass(kw_only=True)
class _RunsSoFar:
    """All runs so far."""

    tallies: list[_Tally]
    local_baseline: list[tuple[float, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    columns_not_measured: list[str] = field(default_factory=list)
    leakage: results.Audit | None = None  # audit of the first candidate's first run
    seeds: int = 0  # with which every candidate was tried
    interrupted: bool = False
    lost: ComputeError | None = None


def _run_all(
    candidates: Sequence[Candidate], runs: Iterator[tuple[int, Outcome]], metric: str, *, pace: "_Pace", watcher: Watcher
) -> _RunsSoFar:
    """Run the trials until time is over, or until an interrupt after a trial."""
    over: dict[int, Outcome] = {}
    interrupted, lost = False, None
    try:
        watcher.progress("trials", 0, pace.runs)
        for number, outcome in runs:
            if isinstance(outcome, results.Result) and outcome.joint[metric]["value"] is None:
                over[number] = DataError(f"the test rows have no {metric}: {outcome.joint[metric]['reason']}; try more --rows")
            else:
                over[number] = outcome
            result, candidate = over[number], candidates[number % len(candidates)]
            if not isinstance(result, results.Result):
                if candidate is candidates[0]:  # the one without a defence
                    raise result
                continue
            if len(over) == 1:
                watcher.say(pace.left())
            seed = candidate.contract.seed + number // len(candidates)
            watcher.say(f"{candidate.name}, seed {seed}: test {metric} {result.joint[metric]['value']:.3f}")
            watcher.progress("trials", len(over), pace.runs)
    except KeyboardInterrupt:
        if 0 not in over:
            raise
        interrupted = True
    except ComputeError as error:
        if 0 not in over:
            raise
        interrupted, lost = True, error
    finally:
        if isinstance(runs, Generator):
            runs.close()  # now, so that no worker is left when this ends
    summed = _RunsSoFar(tallies=[_Tally() for _ in candidates], seeds=len(over) // len(candidates), interrupted=interrupted)
    for number, outcome in sorted(over.items()):
        later, which = divmod(number, len(candidates))
        if not isinstance(outcome, results.Result):
            summed.notes.append(f"{candidates[which].name}, seed {candidates[which].contract.seed + later}: {outcome}")
            continue
        summed.tallies[which].add(outcome, metric)
        if which == 0:
            own = outcome.local_baseline.get(metric)
            if own is not None and own["value"] is not None:
                summed.local_baseline.append(_within(own["value"], own["low"], own["high"]))
        if number == 0:
            summed.columns_not_measured = [line for audit in outcome.sections.features for line in audit.not_measured]
            summed.leakage = outcome.label_audit
    if interrupted:
        whole = sum(len(tally.utility) for tally in summed.tallies)
        summed.notes.append(f"Interrupted: {whole} of {pace.runs} trials were finished.")
    summed.lost = lost
    return summed


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """Time plan: the number of runs; the first run of each candidate is always made, the others while time is left."""

    runs: int
    of: int
    until: float
    at_once: int
    began: float = field(default_factory=time.monotonic)

    def numbers(self) -> Iterator[int]:
        """Yield the runs to begin, seed by seed through all candidates, so that the result is balanced at any time."""
        for number in range(self.runs):
            if number >= self.of and time.monotonic() > self.until:
                return
            yield number

    def left(self) -> str:
        """Say after the first run how long it may take."""
        one = time.monotonic() - self.began
        each = one / self.at_once
        first, rest = each * (self.of - 1), each * (self.runs - 1)
        most = max(first, min(rest, self.until - time.monotonic() + one))
        return f"a run takes about {duration(one)}: about {duration(max(most, 0.0))} to go"


def _summary(contract: Contract, partner: SimulatedPartner, seeds: Sequence[int]) -> str:
    """Say what was tried. ``seeds`` are those of each row, which time or an interrupt may have limited."""
    rows = partner.tables[partner.label].height
    kind = "" if not contract.linkage.imputes else f" {contract.alignment.method} was tried as an intersection."
    if contract.unaligned.used:
        kind += (
            f" {partner.feature} had every row in these trials, so unaligned.method = {contract.unaligned.method} had no rows "
            "to use, and none was tried instead. A run with it may train for longer, and then noise on gradients hides less."
        )
    fewest, most = min(seeds, default=0), max(seeds, default=0)
    seeds_text = f"{fewest} to {most} seeds" if fewest < most else f"{most} seed{'' if most == 1 else 's'}"
    return (
        f"{partner.label} alone, on {rows:,} of its own rows: {len(partner.given)} of its columns stand in for "
        f"{partner.feature}'s "
        f"({', '.join(partner.given)}). {seeds_text}; leak AUC is max(a, 1 - a) per batch.{kind}"
    )
