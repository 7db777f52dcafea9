"""Each module of the library is named by a test: the one that imports it, or this table, where it is reached by another way.

A command, a registry or a package's own names stand between such a module and its test.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = [path for folder in ("tests", "experiments/tests", "robustness/tests") for path in sorted((ROOT / folder).rglob("*.py"))]

REACHED = {
    "tallystick.__main__": ("tests/cli/test_signals.py", '"-m", "tallystick"'),
    "tallystick.alignment.psu_diffie_hellman": ("tests/alignment/test_union_views.py", "union_label_party"),
    "tallystick.api": ("tests/test_public_names.py", "tallystick.predict("),
    "tallystick.attacks.clustered": ("tests/attacks/test_attack_metrics.py", "AttackEvaluator()"),
    "tallystick.attacks.feature_inference.aligned": ("tests/attacks/test_feature_inference.py", "FEATURE_INFERENCE_ATTACKS"),
    "tallystick.attacks.feature_inference.course": ("tests/attacks/test_feature_inference.py", '"course"'),
    "tallystick.attacks.label_inference.bilinear": ("tests/attacks/test_surrogate_top.py", "bilinear"),
    "tallystick.attacks.membership.needs": ("tests/attacks/test_membership.py", "evaluate_membership"),
    "tallystick.attacks.membership.observations": ("tests/attacks/test_membership.py", "evaluate_membership"),
    "tallystick.audit.other_run": ("tests/job/test_several_runs.py", '"--also"'),
    "tallystick.cli.audit": ("tests/cli/test_audit.py", '"--sweep"'),
    "tallystick.cli.decrypt": ("tests/job/test_encrypted_runs.py", '"decrypt"'),
    "tallystick.cli.export": ("tests/export/test_export.py", '"export"'),
    "tallystick.cli.leakage": ("tests/cli/test_audit.py", '"audit"'),
    "tallystick.cli.ledger": ("tests/report/test_ledger_page.py", '"ledger"'),
    "tallystick.cli.options": ("tests/cli/test_cli.py", '"--json"'),
    "tallystick.cli.runs": ("tests/job/test_run_versions.py", '"runs"'),
    "tallystick.cli.signals": ("tests/cli/test_signals.py", "SIGINT"),
    "tallystick.compute.threads": ("tests/compute/test_local.py", "threads=3"),
    "tallystick.compute.worker": ("tests/compute/test_local.py", "killed_worker"),
    "tallystick.config.folds": ("tests/config/test_folded_contract.py", "training.folds"),
    "tallystick.config.gradients": ("tests/job/test_no_gradients.py", "evaluation.share_metrics"),
    "tallystick.config.imputation": ("tests/job/test_union_job.py", "imputation"),
    "tallystick.config.promotion": ("tests/job/test_run_versions.py", "promotion.metric"),
    "tallystick.data.delta": ("tests/data/test_stores.py", "write_deltalake"),
    "tallystick.data.guesses": ("tests/docs/test_tutorials.py", "two-machines"),
    "tallystick.data.parquet": ("tests/data/test_hostile_files.py", "parquet"),
    "tallystick.data.postgres": ("tests/data/test_postgres.py", "postgresql://"),
    "tallystick.data.similar_keys": ("tests/job/test_similarity_job.py", "similarity"),
    "tallystick.data.text": ("tests/data/test_table.py", "text"),
    "tallystick.defenses.checks": ("tests/defenses/test_chain.py", "must"),
    "tallystick.defenses.defense": ("tests/defenses/test_chain.py", "DEFENSES"),
    "tallystick.defenses.passing": ("tests/defenses/test_embedding_defenses.py", "QuantizedEmbeddings"),
    "tallystick.imputation.minority_labels": ("tests/imputation/test_label_imputers.py", "minority"),
    "tallystick.job.findings": ("tests/job/test_report_contents.py", "sections"),
    "tallystick.job.monitor": ("tests/monitoring/test_monitor.py", '"monitor"'),
    "tallystick.job.phases.importance": ("tests/job/test_no_gradients.py", "importance"),
    "tallystick.job.phases.learnt": ("tests/job/test_report_contents.py", "sections"),
    "tallystick.disclosure.evaluation": ("tests/job/test_disclosures.py", "DISCLOSURES"),
    "tallystick.disclosure.disclosure": ("tests/job/test_disclosures.py", "DISCLOSURES"),
    "tallystick.job.phases.once": ("tests/job/test_no_gradients.py", "goes_on_to_the_same_bits"),
    "tallystick.job.phases.tuning_alone": ("tests/job/test_tuning.py", "tuned_alone"),
    "tallystick.job.phases.report": ("tests/job/test_report_contents.py", "sections"),
    "tallystick.job.phases.screening": ("tests/job/test_screening_job.py", "closed_and_named"),
    "tallystick.metrics.statistics": ("tests/evaluation/test_model_metrics.py", "METRICS"),
    "tallystick.models.similarity.model": ("tests/models/test_similarity.py", "build_label_model"),
    "tallystick.monitoring.prometheus": ("tests/monitoring/test_monitor.py", '"--prometheus"'),
    "tallystick.online.clients": ("tests/online/test_feature_party_asks.py", "embedding"),
    "tallystick.online.home": ("tests/online/test_switching.py", "serving/*/*"),
    "tallystick.online.metrics": ("tests/online/test_bad_input.py", "/metrics"),
    "tallystick.privacy.exported": ("tests/privacy/test_ledger.py", "export"),
    "tallystick.report.charts": ("tests/report/test_page.py", "svg"),
    "tallystick.report.monitor": ("tests/monitoring/test_monitor.py", '"--html"'),
    "tallystick.results.merging": ("tests/report/test_result.py", "merge"),
    "tallystick.results.monitoring": ("tests/monitoring/test_drift.py", "judged"),
    "tallystick.results.parts": ("tests/report/test_page.py", "PartyInfo"),
    "tallystick.results.result": ("tests/report/test_result.py", "read_result"),
    "tallystick.serving.explain": ("tests/job/test_explained_scores.py", "most_explained"),
    "tallystick.training.kept_weights": ("tests/training/test_pipelined.py", "pipelined"),
    "tallystick.training.step_rule": ("tests/training/test_step.py", "step"),
    "tallystick.training.unaligned.average": ("tests/training/test_unaligned_bottoms.py", "METHODS"),
    "tallystick.training.unaligned.fedhssl": ("tests/training/test_unaligned_bottoms.py", "fedhssl"),
    "tallystick.training.unaligned.heuristic": ("tests/training/test_unaligned_generators.py", "heuristic"),
    "tallystick.training.unaligned.multi_task": ("tests/training/test_unaligned_bottoms.py", "multi-task"),
    "tallystick.training.unaligned.regressor": ("tests/training/test_unaligned_generators.py", "regressor"),
    "tallystick.training.unaligned.ss_vfl": ("tests/training/test_unaligned_bottoms.py", "ss-vfl"),
    "tallystick.training.unaligned.synthesis": ("tests/training/test_unaligned_generators.py", "synthe"),
    "tallystick.training.unaligned.vfl_mpd": ("tests/training/test_unaligned_bottoms.py", "vfl-mpd"),
    "tallystick.training.workers.crew": ("tests/training/test_workers.py", "Team"),
    "tallystick.training.workers.process": ("tests/training/test_workers.py", "Team"),
    "tallystick.training.workers.shard": ("tests/training/test_workers.py", "Team"),
}
"""Of each module that no test imports: the file of its test, and words of that file that lead to it."""


def modules():
    """The library's modules, but for packages' own."""
    source = ROOT / "src"
    names = (path.relative_to(source).with_suffix("").parts for path in sorted((source / "tallystick").rglob("*.py")))
    return [".".join(parts) for parts in names if parts[-1] != "__init__"]


def imported(text: str) -> set[str]:
    """Modules that a test imports, or names in full."""
    found = set(re.findall(r"tallystick(?:\.\w+)+", text))
    for parent, listed in re.findall(r"^from (tallystick[\w.]*) import (\([^)]*\)|[^\n]*)", text, re.MULTILINE):
        found |= {f"{parent}.{name}" for name in re.findall(r"\w+", listed)}
    return found


IMPORTED = set().union(*(imported(path.read_text()) for path in TESTS if path != Path(__file__)))


def test_each_module_is_imported_by_a_test_or_stands_in_the_table():
    assert [name for name in modules() if name not in IMPORTED and name not in REACHED] == []


def test_the_table_holds_no_more_than_it_must():
    assert [name for name in REACHED if name not in modules() or name in IMPORTED] == []


@pytest.mark.parametrize(("file", "words"), sorted(set(REACHED.values())))
def test_the_tests_of_the_table_are_there(file, words):
    assert words in (ROOT / file).read_text()
