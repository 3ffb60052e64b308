"""The table of docs/sweep.md is what the script prints."""

import json

import usual_cures


def test_the_table_is_printed_from_the_results():
    rows = json.loads(usual_cures.RESULTS.read_text(encoding="utf-8"))
    page = (usual_cures.ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")
    assert usual_cures.table(rows) in page, "scripts/bench/usual_cures.py --page prints it"


def test_the_best_of_a_training_is_its_best_word():
    rows = [{"a": "worse", "b": "helps"}, {"a": "nothing", "b": "worse"}, {"a": "worse", "b": "worse"}]
    *_, best = usual_cures.table(rows).splitlines()
    assert best == "| the best of these | 1 | 0 | 1 | 1 |"
