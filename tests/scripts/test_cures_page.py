"""docs/findings/cures.md is what the script prints, and a treatment reaches the training."""

import json
from dataclasses import replace

import cures
import pytest
import torch
from readings import READINGS
from readings_afresh import READ_AFRESH
from readings_last import READ_LAST
from readings_since import READ_SINCE
from trainings import Treatment, fit, treated
from unseen import SICK, group, of_group

RESULTS = json.loads(cures.RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_printed_from_the_results():
    found = (cures.ROOT / "docs" / "findings" / "cures.md").read_text(encoding="utf-8")
    assert found == cures.page(RESULTS), "scripts/bench/cures.py --page prints it"


def test_all_that_may_be_looked_at_was_tried_and_nothing_of_the_other_half():
    to_be = cures.to_be_looked_at()
    assert list(RESULTS) == [training.name for training in to_be]
    assert [len(rows) for rows in RESULTS.values()] == [len(cures.seeds(training)) for training in to_be]
    assert not {training.name for training in of_group(SICK, "held out")} & {*RESULTS}


def test_each_reading_is_of_a_finding_that_has_a_page():
    pages = {page.stem for page in (cures.ROOT / "docs" / "findings").glob("*.md")}
    assert {name for name, _ in READINGS} <= {*SICK, *cures.WRITTEN_FOR}
    assert {group(SICK[name]) for name, _ in READ_SINCE} <= {*cures.READ_ONCE, "tuning"}
    assert {group(SICK[name]) for name, _ in READ_LAST} <= {*cures.LATEST}
    assert {group(SICK[name]) for name, _ in READ_AFRESH if name in SICK} == {"afresh"}
    assert {rule for _, rule in READINGS | READ_SINCE | READ_LAST | READ_AFRESH} <= pages


def test_the_first_reading_of_the_latest_groups_is_kept_as_it_was():
    first = json.loads(cures.FIRST.read_text(encoding="utf-8"))
    assert list(first) == [training.name for name in cures.LATEST for training in of_group(SICK, name)]
    read_once = {name: rows for name, rows in RESULTS.items() if name in first}
    frozen, today = (
        {line.split(" | ")[0]: line.split(" | ")[1:] for line in cures.before(each) if line.startswith("| sent")}
        for each in (first, read_once)
    )
    assert today["| sent, at first"] == frozen["| sent, at first"] == frozen["| sent, today"]
    assert (
        today["| sent, today"]
        == cures.totals("", {n: read_once[n] for n in first if group(SICK[n]) == "sent"})[2].split(" | ")[1:]
    )


def test_what_an_advice_brings_to_an_end_is_lost_and_what_ends_by_itself_is_no_score(tmp_path):
    def train(folder, ill):
        raise AttributeError("no gradient")

    ends, trained = replace(SICK["sgd-rate-of-adam"], train=train), cures.Trained(tmp_path)
    row = trained.score(ends, 0, "--skip", treatment=Treatment())
    assert (row["last"], row["raised"]) == (None, "no gradient")
    with pytest.raises(AttributeError):
        trained.score(ends, 0, "ill")


INF = float("inf")


@pytest.mark.parametrize(
    ("first", "untreated", "treated", "expert", "spread", "did"),
    [
        (2.0, 1.0, 0.4, 0.0, 0.0, "helps"),
        (2.0, 1.0, 0.8, 0.0, 0.0, "a little"),
        (2.0, 1.0, 1.05, 0.0, 0.0, "nothing"),
        (2.0, 1.0, 1.2, 0.0, 0.3, "nothing"),  # within what the seeds differ
        (2.0, 1.0, 1.4, 0.0, 0.3, "worse"),
        (2.0, 1.0, INF, 0.0, 0.3, "worse"),
        (2.0, INF, 1.5, 0.0, 0.0, "a little"),  # of a training that diverged, from where it began
        (2.0, INF, INF, 0.0, 0.0, "nothing"),
        (2.0, 60.0, 20.0, 0.0, 0.0, "nothing"),  # still worse than it began
    ],
)
def test_what_an_advice_did_is_measured_by_the_gain_of_the_expert(first, untreated, treated, expert, spread, did):
    assert cures.did(first, untreated, treated, expert, spread) == did


def test_a_seed_of_which_nothing_is_said_counts_as_it_is():
    told = {"found": "spike", "right": True, "tries": {"--skip": 0.1}, "first": 2.0, "untreated": 1.0, "expert": 0.0}
    rows = [{**told, "treated": 0.2}, {**told, "treated": 0.8}, {**told, "found": None, "tries": {}, "treated": 1.0}]
    assert cures.result(rows) == "a little"
    assert cures.result(rows[2:]) == "nothing said"
    assert [cures.best(row) for row in rows] == [0.1, 0.1, 1.0]
    rows[0]["as_expert"] = False
    one_row = cures.totals("half", {"a": rows})
    assert one_row[2:] == [
        "| half | 1 | 0 | 1 | 0 | 0 | 0 |",
        "| of these, the finding is right | 1 | 0 | 1 | 0 | 0 | 0 |",
        "| of these, the advice is not read as the expert's fix | 1 | 0 | 1 | 0 | 0 | 0 |",
        "| by the best cure that is named | 1 | 1 | 0 | 0 | 0 | 0 |",
        "| single seeds | 3 | 1 | 1 | 0 | 0 | 1 |",
    ]
    rows[0]["as_expert"] = True
    assert cures.totals("half", {"a": rows})[4].endswith("| 0 | 0 | 0 | 0 | 0 | 0 |")


def test_a_treatment_reaches_the_training_and_draws_no_number_of_its_data(tmp_path):
    drawn = []

    def train(folder):
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def loss_of(step):
            drawn.append(torch.randn(4, 2))
            return net(drawn[-1]).square().mean()

        return fit(folder, net, optimizer, loss_of, 2), net

    def begin_again(net, optimizer):
        net.reset_parameters()

    plain, _ = train(tmp_path / "plain")
    with treated(Treatment({"lr_scale": 0.5}, begin_again)):
        changed, _ = train(tmp_path / "treated")
    assert (plain.run.lr_scale, changed.run.lr_scale) == (1.0, 0.5)
    assert plain.total("loss")[0] != changed.total("loss")[0]
    assert all(torch.equal(*pair) for pair in zip(drawn[:2], drawn[2:], strict=True))
