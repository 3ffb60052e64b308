"""What `watch()` is given: its manifest can be read again, or it says what is wrong before the training begins."""

import json
import math
import sys
import warnings
from dataclasses import replace
from decimal import Decimal
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from make_run import make_history
from torch import nn
from training import batches, mlp, train, watch

import gradwatch
from gradwatch.errors import RunError, WatchError
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.manifest import check_run
from gradwatch.storage.run_reader import read_run


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


class Level(IntEnum):
    HIGH = 3


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("no words")


class Odd(nn.Linear):
    def __init__(self, said):
        super().__init__(6, 3)
        self.said = said

    def extra_repr(self):
        if self.said is None:
            raise RuntimeError("no words")
        return self.said


class Settled(torch.optim.SGD):
    """An optimizer with settings of somebody's own."""

    def __init__(self, params, odd):
        super().__init__(params, lr=0.1)
        self.defaults["odd"] = odd


ODD_SETTINGS = [
    (torch.tensor(0.9), torch.tensor(0.99)),
    ((0.9, 0.99), (0.8, (1,))),
    (Unspeakable(), {"a": 1}),
    tuple(range(1000)),
    2**63,
    -(10**5000),
    "lone \ud800 surrogate",
    Level.HIGH,
    math.nan,
    np.float64(0.5),
    (np.float32(0.5), Path("x"), None),
]


@pytest.mark.parametrize("odd", ODD_SETTINGS, ids=range(len(ODD_SETTINGS)))
def test_a_setting_that_cannot_be_described_is_text(odd, tmp_path):
    model = mlp()
    made = watch(model, Settled(model.parameters(), odd), tmp_path)
    made.close()
    settings = read_manifest(made.dir).optimizers[0]["settings"]
    assert set(settings) >= {"lr", "odd"}


def test_adam_with_betas_that_are_tensors_is_watched(tmp_path):
    model = mlp()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=torch.tensor(1e-3), betas=(torch.tensor(0.9), torch.tensor(0.99))
    )
    made = watch(model, optimizer, tmp_path)
    train(model, optimizer, steps=3)
    made.close()
    assert len(read_run(made.dir)) == 3


class Mute:
    def __str__(self):
        raise RuntimeError("no words")

    def __repr__(self):
        return "Mute()"  # for hypothesis


MUTE = Mute()
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(MUTE)
    | st.sampled_from([Path("x"), np.float32(1), np.str_("x"), "\ud800", 10**400, torch.tensor(1.0), Decimal("sNaN")]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(deadline=None, database=None, derandomize=True, max_examples=100)
@given(data=st.data())
def test_what_watch_takes_its_own_reader_reads(data, tmp_path_factory):
    """Any argument is any value: a Watch whose manifest is read again, or one of our errors."""
    names = ("every", "total_steps", "mlflow_layers", "run_name", "tags", "params", "flush_every", "log", "delivery",
             "halt_on", "layers", "ignore", "run_id", "tracking_uri", "name", "higher_is_better")  # fmt: skip
    chosen = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=2))
    options = {name: data.draw(ANYTHING, label=name) for name in chosen}
    if data.draw(st.booleans(), label="tags are a mapping"):
        options["tags"] = data.draw(st.dictionaries(ANYTHING.filter(lambda v: v.__hash__ is not None
                                                    and not isinstance(v, tuple)), ANYTHING, max_size=3))  # fmt: skip
    folder = tmp_path_factory.mktemp("runs")
    model = mlp()
    try:
        made = watch(model, Settled(model.parameters(), data.draw(ANYTHING, label="setting")), folder, **options)
    except (WatchError, RunError):
        return
    made.close(timeout=0)
    assert read_manifest(made.dir).name


@pytest.mark.parametrize(
    "options",
    [
        {"every": 10**12}, {"every": True}, {"every": None}, {"total_steps": sys.maxsize}, {"total_steps": False},
        {"mlflow_layers": sys.maxsize}, {"flush_every": True}, {"log": np.array([1, 2])},
        {"params": {f"p{i}": i for i in range(10_000)}}, {"params": [1]}, {"tags": "a"}, {"run_name": 5},
        {"run_name": "x" * 20_001}, {"dir": 5}, {"dir": "a\0b"}, {"layers": 5}, {"ignore": [5]}, {"run_id": 5},
        {"tracking_uri": 5, "run_id": "a"}, {"tracking_uri": "http://[::1", "run_id": "a"},
        {"higher_is_better": ["elo"]}, {"higher_is_better": {"elo": 1}},
    ],
    ids=lambda options: str(options)[:40],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_is_made(options, tmp_path):
    model = mlp()
    with pytest.raises(WatchError):
        gradwatch.watch(model, sgd(model), **{"log": None, "dir": tmp_path, "verbose": False, **options})
    assert not [*tmp_path.iterdir()]


def test_tags_and_params_of_any_kind_are_text(tmp_path):
    model = mlp()
    odd = {"path": Path("a/b"), "count": 3, "half": np.float32(0.5), "nested": {"a": [1, 2]}, "none": Unspeakable()}
    made = watch(model, sgd(model), tmp_path, tags={**odd, 5: "x", "\ud800": "\ud800"}, params=odd)
    made.close()
    run = read_manifest(made.dir)
    assert run.tags["path"] == run.params["path"] == str(Path("a/b"))
    assert run.tags["count"] == 3
    assert run.tags["half"] == run.params["half"] == "0.5"
    assert run.tags["none"] == run.params["none"] == "a Unspeakable"
    assert run.tags["\\ud800"] == "\\ud800"


@pytest.mark.parametrize("said", [None, "\ud800"])
def test_a_model_that_cannot_be_printed_is_watched(said, tmp_path):
    model = Odd(said).to(torch.float64)
    optimizer = sgd(model)
    made = watch(model, optimizer, tmp_path)
    train(model, optimizer, steps=2)
    made.close()
    assert len(read_run(made.dir)) == 2
    assert (made.dir / "model.txt").read_text(encoding="utf-8").strip()


@pytest.mark.parametrize("how", ["lazy", "meta", "inference"])
def test_weights_that_hold_no_numbers_yet_are_refused_in_a_line(how, tmp_path):
    model = nn.Sequential(nn.LazyLinear(8) if how == "lazy" else nn.Linear(6, 8), nn.Linear(8, 3))
    optimizer = sgd(model.to("meta") if how == "meta" else model)
    with torch.inference_mode(how == "inference"), pytest.raises(WatchError, match="before watch"):
        watch(model, optimizer, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_what_does_not_want_to_be_looked_at_is_left_alone(tmp_path):
    class Shy:
        @property
        def __dict__(self):
            raise RuntimeError("no")

    model = mlp()
    model.shy = Shy()
    optimizer = sgd(model)
    with watch(model, optimizer, tmp_path) as made:
        train(model, optimizer, steps=2)
    assert len(read_run(made.dir).layers) == 4


def test_a_layer_whose_name_no_file_can_hold_is_recorded_under_another(tmp_path):
    model = nn.Sequential()
    model.add_module("a\ud800", nn.Linear(6, 3).to(torch.float64))
    optimizer = sgd(model)
    made = watch(model, optimizer, tmp_path)
    train(model, optimizer, steps=2)
    made.close()
    assert read_run(made.dir).layers == ("a\\ud800.weight", "a\\ud800.bias")


def test_a_disk_that_is_full_at_the_start_is_a_run_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    for place in ("writer", "shared_folder"):
        monkeypatch.setattr(f"gradwatch.storage.{place}.write_json", full)
    model = mlp()
    for options in ({}, {"name": "G"}):
        with pytest.raises(RunError, match="No space left on device"):
            watch(model, sgd(model), tmp_path, **options)


@pytest.mark.parametrize("uri", ["http://[::1", "http://h:port", "http://u:p/w@h"])
def test_a_malformed_tracking_uri_of_the_environment_is_a_warning(uri, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    model = mlp()
    optimizer = sgd(model)
    with pytest.warns(gradwatch.errors.GradwatchWarning, match="no address"):
        made = watch(model, optimizer, tmp_path, log="mlflow", delivery="none")
    train(model, optimizer, steps=2)
    made.close()
    assert len(read_run(made.dir)) == 2


class Bad:
    def __float__(self):
        raise KeyError("no number")


@pytest.mark.parametrize("value", [10**400, np.str_("x"), Decimal("sNaN"), Bad(), Unspeakable(), 1j, "1"])
def test_a_value_that_is_no_number_is_told_by_name_and_costs_nothing(value, tmp_path):
    model = mlp()
    optimizer = sgd(model)
    made = watch(model, optimizer, tmp_path)
    said = []
    for x, y in batches(4):
        nn.functional.cross_entropy(model(x).float(), y).backward()
        optimizer.step()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made.log(odd=value)
        said += [str(each.message) for each in told]
        made.log(fine=1.0)
    made.close()
    history = read_run(made.dir)
    assert len(history) == 4
    assert history.logged == ("fine",)
    assert len(said) == 1
    assert "odd" in said[0]


def test_the_writers_check_is_the_readers():
    """A manifest that `check_run` lets through is one that `run_of` reads, and the other way round."""
    run = make_history(steps=2).run
    check_run(run)
    for change in ({"every": 2**31}, {"window": 2**54}, {"tags": {"a": [1]}}, {"status": "x" * 101}):
        with pytest.raises(ValueError, match=next(iter(change))):
            check_run(replace(run, **change))
    assert json.dumps(run.to_json())
