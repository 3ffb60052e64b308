"""scripts/bench/judgement.py: what it prints of trainings whose names nobody is to see."""

import judgement
import pytest
from unseen import HEALTHY, SICK, UNNAMED, of_group


def without_a_name():
    """Those whose names nobody is to see."""
    return [training for of in (SICK, HEALTHY) for group in UNNAMED for training in of_group(of, group)]


@pytest.fixture
def nothing_found(monkeypatch):
    """No training is trained, and of none is anything said."""
    monkeypatch.setattr(judgement, "judged", lambda training: judgement.Judged(training, []))


@pytest.fixture
def few(monkeypatch):
    """Three of the tuning half in the place of any group."""
    monkeypatch.setattr(judgement, "of_group", lambda of, group: of_group(of, "tuning")[:3])
    return [training.name for of in (SICK, HEALTHY) for training in of_group(of, "tuning")[:3]]


@pytest.mark.parametrize("group", UNNAMED)
def test_of_those_without_a_name_the_totals_are_printed(group, few, nothing_found, capsys):
    assert judgement.main([f"--{group}"]) == 0
    out, err = capsys.readouterr()
    assert f"| {group} | 3 | 0 | 0 | 0 | 3 | 3 | 0 | 0 |" in out.splitlines()
    assert err.splitlines() == ["1 of 3", "2 of 3", "3 of 3"] * 2
    assert not [name for name in few if name in out + err]


@pytest.mark.parametrize("group", UNNAMED)
def test_some_of_them_cannot_be_asked_for(group, few, nothing_found, capsys):
    with pytest.raises(SystemExit) as ended:
        judgement.main([f"--{group}", "--only", few[0]])
    assert ended.value.code == 2
    assert capsys.readouterr().out == ""


def test_the_page_and_the_held_out_totals_leave_them_out(nothing_found, capsys):
    names = [training.name for training in without_a_name()]
    for arguments in ([], ["--held-out"]):
        assert judgement.main(arguments) == 0
        out = capsys.readouterr().out
        assert not [name for name in names if f"| {name} |" in out]


def test_the_check_covers_all_and_names_none_of_them(monkeypatch, capsys):
    monkeypatch.setattr(judgement, "fault", lambda training, folder: "hardly worse")
    assert judgement.main(["--check"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(SICK) + len(HEALTHY)
    assert not [t.name for t in without_a_name() if any(line.startswith(t.name) for line in lines)]
