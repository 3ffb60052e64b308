"""Names in MLflow: a layer, a block, a part, a logged scalar each has a key that nothing else has."""

import hashlib
from string import hexdigits

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from make_run import LAYERS, make_history

from gradwatch.table import RECORDED, STEP_COLUMNS
from gradwatch.tracking.client import run_params
from gradwatch.tracking.metric_keys import LAYER_QUANTITIES, LOSS, windows
from gradwatch.tracking.mlflow_names import OWN, blocks, safe_name

GPT = [f"h.{i}.{m}.{p}" for i in range(24) for m in ("attn", "mlp") for p in ("weight", "bias")]

# Names as mean as they come: of gradwatch's own keys, of signs that MLflow refuses, of paths, long, and marked.
PIECES = st.sampled_from(
    [*OWN, "total", "before_loop_clip", "rate", "rate_so_far", "lr", "setting/", "logged/", "loss", "grad_norm", "a",
     "weight", "update_ratio", "G", "0", "1", "01", "..", ".", "/", "//", "../", "!", "?", "_", " ", "\n", "é",
     "\ud800", "--", f"--{hexdigits[:12]}", "x" * 125]
)  # fmt: skip
NAMES = st.lists(PIECES, min_size=1, max_size=4).map("".join) | st.text(max_size=8)
LAYER_NAMES = st.lists(NAMES, min_size=1, max_size=8, unique=True)
LOGGED = st.lists(NAMES.filter(lambda n: len(n) <= 250 and n not in STEP_COLUMNS and not n.startswith(RECORDED)),
                  max_size=8, unique=True)  # fmt: skip


def keys_of(layers, logged, limit=16, part=None):
    """The key of every point of one window, in which every series has one."""
    names = [f"{part}.{name}" for name in layers] if part else layers
    history = make_history(steps=6, layers=names, logged=logged, every=1, part=part)
    values = {
        name: np.arange(6.0) for name in ("user_max_norm", "user_grad_norm", "user_clip_coef", "setting/momentum")
    }
    history.per_step.update(values)
    (window,) = windows(history, 6, limit, ended=True)
    return [point.key for point in window.points]


# The keys of a run of which nothing is logged and no layer is known; of layers, three more sum them all up
FIXED = len(keys_of([], [])) + 3


@settings(deadline=None, max_examples=300)
@given(LAYER_NAMES, LOGGED, st.sampled_from([1, 3, 16]))
@example(["total", "before_loop_clip", "total/G"], ["clip/rate", "clip/rate_so_far", "grad_norm/total", "lr_0"], 16)
@example(["a!b", "a?b", "a_b"], ["acc!", "acc?", "acc_", "loss", "../loss", "./loss", "grad_norm/a_b"], 16)
@example(["h.1.w", "h.01.w", "h.10.w", "h.2.w"], ["logged/clip/rate", "clip/rate"], 3)
@example(["w" * 300, "w" * 301], ["x" * 249 + "!", "x" * 249 + "?"], 16)
def test_no_two_things_share_a_key_and_mlflow_takes_them_all(layers, logged, limit):
    validation = pytest.importorskip("mlflow.utils.validation")
    keys = keys_of(layers, logged, limit)
    losses = [name for name in logged if LOSS.fullmatch(name)]  # which have a second key
    assert len(keys) == FIXED + len(LAYER_QUANTITIES) * len(blocks(layers, limit)) + len(logged) + len(losses)
    assert len(set(keys)) == len(keys)
    for key in keys:
        validation._validate_metric_name(key)


@settings(deadline=None, max_examples=100)
@given(st.lists(NAMES, min_size=1, max_size=4, unique=True), LOGGED, st.sampled_from([1, 3, 16]))
@example(["w"], ["weight_norm", "loss", "x" * 249], 1)
@example(["w"], ["loss/G", "loss/total", "clip", "loss", "train/loss", "x" * 250], 1)
def test_nor_do_those_of_the_parts_of_one_run(layers, logged, limit):
    keys = [key for part in ("G", "D", "total", "rate", "x" * 64) for key in keys_of(layers, logged, limit, part)]
    assert len(set(keys)) == len(keys)


def test_what_is_logged_under_an_own_key_is_kept_beside_it():
    new = {*keys_of(["w"], ["clip/rate", "grad_norm/w", "logged/clip/rate", "logged/loss"])} - {*keys_of(["w"], [])}
    assert new == {"logged/clip/rate", "logged/grad_norm/w", "logged/logged/clip/rate", "logged/loss"}
    assert "logged/weight_norm/G" in keys_of(["w"], ["weight_norm"], part="G")


def test_a_key_says_what_it_stands_for():
    assert safe_name("loss(train)") == f"loss_train_--{hashlib.sha256(b'loss(train)').hexdigest()[:12]}"
    keys = keys_of(["total"], [])
    assert sum(key.startswith("grad_norm/total--") for key in keys) == 1
    assert "weight_norm/total" in keys
    assert {"grad_norm/G.fc1.weight", "acc/top5/G"} <= {*keys_of(["fc1.weight"], ["acc/top5"], part="G")}


def test_params_that_look_alike_are_two():
    run = make_history(params={"lr!": "1", "lr?": "2"}).run
    found = run_params(run)
    assert {found[safe_name("lr!")], found[safe_name("lr?")]} == {"1", "2"}


def test_few_layers_keep_their_names():
    assert list(blocks(LAYERS, 16)) == list(LAYERS)


def test_many_layers_become_module_blocks_that_sort_in_model_order():
    found = blocks(GPT[: 12 * 4], 16)
    assert list(found) == [f"h.{i:02d}" for i in range(12)] == sorted(found)
    assert found["h.03"] == [12, 13, 14, 15]


def test_a_deep_stack_is_cut_into_ranges_not_into_one_block():
    found = blocks(["wte.weight", *GPT, "ln_f.weight"], 16)
    assert len(found) == 16
    assert "h.01..02" in found
    assert sorted(i for group in found.values() for i in group) == list(range(len(GPT) + 2))


def test_a_wide_flat_model_is_cut_into_ranges():
    found = blocks([f"p{i}" for i in range(40)], 4)
    assert list(found) == ["p0..p9", "p10..p19", "p20..p29", "p30..p39"]


@pytest.mark.parametrize(
    "name", ["a/b", "Genauigkeit ü", "loss", "val loss", "h.0.mlp.w", "f1:macro", "a-b--c", "x" * 250]
)
def test_ordinary_names_are_their_own_keys(name):
    assert safe_name(name) == name


@pytest.mark.parametrize("limit", [1, 4, 16])
@pytest.mark.parametrize("layers", [LAYERS, GPT, [f"p{i}" for i in range(40)]], ids=["small", "gpt", "flat"])
def test_every_layer_is_in_exactly_one_block(layers, limit):
    found = blocks(layers, limit)
    assert len(found) <= limit
    assert [i for group in found.values() for i in group] == list(range(len(layers)))
