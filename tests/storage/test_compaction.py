"""Long runs: few files however long they last, and a History that fits in memory and loses no spike and no count."""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_run import as_block, changed, make_history, same, write_parts, write_shared

from gradwatch import RunError, open_history
from gradwatch.analysis.final_values import diverged, final, nonfinite_steps
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.clipping import clip_inert
from gradwatch.analysis.rules.dead_layers import dead_layer
from gradwatch.analysis.whatif import what_if
from gradwatch.report import build_report, render_html
from gradwatch.report.run_charts import norm_chart
from gradwatch.report.text import render_json, render_markdown
from gradwatch.storage import compaction, downsample
from gradwatch.storage.compaction import Compactor, due, merge
from gradwatch.storage.encoding import wide_table
from gradwatch.storage.folder import Part, create_folder, is_closed, list_parts
from gradwatch.storage.joining import concat
from gradwatch.storage.parquet import _tile
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.shared_folder import read_whole
from gradwatch.storage.writer import RunWriter
from gradwatch.tracking.sync import RetryingCourier, _changed, _sleep

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "bench"
AT_MOST = 50_000


@pytest.fixture
def small_steps(monkeypatch):
    """Four parts make one of the next level."""
    for module in ("compaction", "folder"):
        monkeypatch.setattr(f"gradwatch.storage.{module}.FAN_IN", 4)


# ---------------------------------------------------------------------------------------------------------- compaction


@pytest.mark.slow
def test_thousands_of_flushes_are_few_files_and_each_is_merged_twice(tmp_path, monkeypatch):
    """On empty files, with 16 parts to a level: only how they are merged is looked at."""
    for module in ("compaction", "folder"):
        monkeypatch.setattr(f"gradwatch.storage.{module}.FAN_IN", 16)
    written = []

    def fake(parts, cancelled):
        target = tmp_path / f"part-{parts[0].first:06d}-{parts[-1].last:06d}.parquet"
        target.touch()
        for part in parts:
            part.path.unlink()
        written.append(parts[-1].last - parts[0].first + 1)
        return True

    monkeypatch.setattr(compaction, "merge", fake)
    monkeypatch.setattr(compaction, "_opens", lambda path: True)
    compactor, most = Compactor(tmp_path, lambda: False), 0
    for number in range(3_000):
        (tmp_path / f"part-{number:06d}.parquet").touch()
        compactor.compact()
        most = max(most, len(list_parts(tmp_path)))
    parts = list_parts(tmp_path)
    assert most <= 2 * 16 + 3_000 // 16**2
    assert [part.first for part in parts] == [0, *(part.last + 1 for part in parts[:-1])]
    assert parts[-1].last == 2_999
    assert [is_closed(part) for part in parts] == [True] * 11 + [False] * (len(parts) - 11)
    assert sum(written) <= 2 * 3_000


def test_levels_of_parts_hold_every_row_in_order(tmp_path, small_steps):
    history, folder = make_history(steps=300, nan_at=50), create_folder(tmp_path, "levels")
    write_parts(folder, history, 75)
    names = [part.path.stem for part in list_parts(folder / "layers")]
    assert names[:4] == [f"part-{16 * i:06d}-{16 * i + 15:06d}" for i in range(4)]
    assert len(names) == 4 + 2 + 3
    assert sorted(path.name for path in (folder / "layers").iterdir()) == sorted(f"{name}.parquet" for name in names)
    same(open_history(folder), history)
    step = pq.read_table(folder / "layers")["step"].to_numpy()
    assert (np.diff(step) >= 0).all()


def test_large_parts_are_merged_early_and_then_never_touched(tmp_path, monkeypatch):
    for module in ("compaction", "folder"):
        monkeypatch.setattr(f"gradwatch.storage.{module}.CLOSED_BYTES", 20_000)
    history, folder = make_history(steps=2_000), create_folder(tmp_path, "large")
    writer, closed = RunWriter(folder, history.run, flush_seconds=1000), {}
    for start in range(0, 2_000, 50):
        writer.pending.append(as_block(history.slice(start, start + 50)))
        writer._flush()
        now = {p.path: p.path.stat().st_ino for p in list_parts(folder / "layers") if is_closed(p)}
        assert closed.items() <= now.items()
        closed = now
    writer.close()
    assert len(closed) >= 3
    assert all(path.stat().st_size < 2 * 20_000 for path in closed)
    same(open_history(folder), history)


def test_rows_that_come_fast_do_not_wait_for_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr("gradwatch.storage.writer.FLUSH_ROWS", 7 * 50)
    history, folder = make_history(), create_folder(tmp_path, "fast")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for start in range(0, 200, 25):
        writer.append(as_block(history.slice(start, start + 25)))
    writer.close()
    assert len(list_parts(folder / "layers")) in (4, 5)  # the first block may be written before the second has come
    same(open_history(folder), history)


@pytest.mark.parametrize("late", [1, 6])
def test_pandas_reads_what_was_logged_later(late, tmp_path, small_steps):
    """In the last flush of a short run too, and where parts were merged meanwhile."""
    history, folder = make_history(logged=()), create_folder(tmp_path, "later")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for i in range(late + 1):
        block = history.slice(20 * i, 20 * i + 20)
        if i == late:
            block = changed(block, per_step={**block.per_step, "val_loss": np.full(20, 0.5, np.float32)})
        writer.pending.append(as_block(block))
        if i < late:
            writer._flush()
    writer.close()
    steps = pd.read_parquet(folder / "steps")
    assert steps["val_loss"].isna().sum() == 20 * late
    assert set(steps["val_loss"].iloc[20 * late :]) == {0.5}
    np.testing.assert_array_equal(steps["grad_norm"], history.total("grad_norm")[: len(steps)])
    assert not list(folder.rglob("*.tmp"))


def test_a_part_that_is_closed_gets_no_columns(tmp_path, small_steps):
    history, folder = make_history(logged=()), create_folder(tmp_path, "closed")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for i in range(0, 160, 10):
        writer.pending.append(as_block(history.slice(i, i + 10)))
        writer._flush()
    first = list_parts(folder / "steps")[0]
    before = first.path.stat().st_ino
    block = history.slice(160, 170)
    writer.pending.append(
        as_block(changed(block, per_step={**block.per_step, "val_loss": np.full(10, 0.5, np.float32)}))
    )
    writer.close()
    assert is_closed(first)
    assert first.path.stat().st_ino == before


def test_a_merge_that_is_given_up_leaves_everything_as_it_was(tmp_path):
    history, folder = make_history(), create_folder(tmp_path, "given up")
    write_parts(folder, history, 4)
    before = sorted((folder / "layers").iterdir())
    assert not merge(list_parts(folder / "layers"), lambda: True)
    assert sorted((folder / "layers").iterdir()) == before


def test_closing_gives_up_merging(tmp_path, small_steps, monkeypatch):
    history, folder = make_history(), create_folder(tmp_path, "closing")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for start in range(0, 200, 50):
        writer.closing = start == 150
        writer.pending.append(as_block(history.slice(start, start + 50)))
        writer._flush()
    assert len(list_parts(folder / "layers")) == 4
    writer.closing = False
    writer.close()
    assert writer.closing
    same(open_history(folder), history)


def test_an_unreadable_part_stays_and_is_named_while_the_others_are_merged(tmp_path, small_steps, caplog):
    history, folder = make_history(), create_folder(tmp_path, "damaged")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for i in range(10):
        writer.pending.append(as_block(history.slice(20 * i, 20 * i + 20)))
        writer._flush()
        if i == 0:
            (folder / "layers" / "part-000000.parquet").write_bytes(b"PAR1 not parquet")
    writer.close()
    names = [part.path.stem for part in list_parts(folder / "layers")]
    assert names == ["part-000000", "part-000001-000004", "part-000005-000008", "part-000009"]
    assert [r.message for r in caplog.records] == [
        f"gradwatch: {folder}/layers/part-000000.parquet is unreadable and stays as it is"
    ]
    got = open_history(folder)
    assert len(got.problems) == 1
    assert "layers/part-000000.parquet is unreadable" in got.problems[0]
    np.testing.assert_array_equal(got.layer_step, np.arange(20, 200))
    np.testing.assert_array_equal(got.layer("grad_norm"), history.layer("grad_norm")[20:])


@pytest.mark.parametrize(
    "order", ["cut", "cut at first", "shifted", "mixed", "mixed but for the first", "two sets of layers"]
)
def test_parts_of_other_makes_are_read_all_the_same(tmp_path, order):
    history, folder = make_history(), create_folder(tmp_path, "other")
    write_parts(folder, history, 1)
    path = folder / "layers" / "part-000000.parquet"
    table = pq.read_table(path)
    if order.startswith("mixed"):
        fixed = order.endswith("first")
        mixed = [[0, *np.random.default_rng(i).permutation(7 - fixed) + fixed][1 - fixed :] for i in range(200)]
        table = table.take(pa.array(np.concatenate([np.array(row) + 7 * i for i, row in enumerate(mixed)])))
    elif order == "two sets of layers":
        table = table.filter(pa.array(~((np.arange(1400) % 7 == 2) & (np.arange(1400) >= 700))))
        history.per_layer.update({q: v.copy() for q, v in history.per_layer.items()})
        for values in history.per_layer.values():
            values[100:, 2] = np.nan
    with pq.ParquetWriter(path, table.schema) as writer:
        bounds = {"cut": [0, 100, 1400], "cut at first": [0, 3, 7, 1400], "shifted": [0, 3, 1396, 1400]}.get(
            order, [0, 1400]
        )
        for start, stop in pairwise(bounds):
            writer.write_table(table.slice(start, stop - start))
    same(open_history(folder), history)


def test_a_row_group_that_begins_within_a_step_is_no_tile(tmp_path):
    history = make_history()
    table = wide_table(history.by_layer, "layer")
    assert len(_tile(table, "layer")) == 200
    assert _tile(table.slice(3, 7 * 199), "layer") is None


def test_a_reader_that_needs_the_end_leaves_out_row_groups_before_it(tmp_path):
    history, folder = make_history(), create_folder(tmp_path, "end")
    write_parts(folder, history, 4)
    merge(list_parts(folder / "steps"))
    got = read_run(folder, start=150)
    same(got.slice(150, 200), history.slice(150, 200))
    assert len(got) == 200  # of the merged steps table nothing is cut
    np.testing.assert_array_equal(got.layer_step, np.arange(150, 200))


# ------------------------------------------------------------------------------------------------------------- reduced


def long_history(steps=4_000, **changes):
    """Noise, with one spike of one step in one layer, an inf in another, and a layer that is absent at times."""
    history = make_history(steps=steps, layers=tuple(f"l{i}" for i in range(30)), nan_at=2_222, **changes)
    layers = history.per_layer
    layers["grad_norm"][1_234, 5] = 1e4
    layers["grad_norm"][3_003, 7], layers["nonfinite"][3_003, 7] = np.inf, 1
    for values in layers.values():
        values[np.arange(steps) % 3 == 1, 9] = np.nan
        values[1_000:3_000, 11] = np.nan
    rate = layers["clip_rate"]
    chance = np.arange(steps)[:, None] / steps
    rate[:] = np.where(np.isnan(rate), np.nan, np.random.default_rng(3).random((steps, 1)) < chance)
    history.per_step["nonfinite"] = np.nansum(layers["nonfinite"], axis=1, dtype=float)
    history.per_step["grad_norm"][3_003] = np.inf
    history.per_step["grad_norm"][2_222] = np.nan
    return history


def written(tmp_path, history, parts=7):
    folder = create_folder(tmp_path, "long")
    write_parts(folder, history, parts)
    return folder


def test_a_reduced_history_keeps_spikes_extremes_and_counts(tmp_path):
    full = long_history()
    got = open_history(written(tmp_path, full), AT_MOST)
    assert not open_history(written(tmp_path, full)).is_reduced
    assert got.is_reduced
    assert len(got.layer_step) < 600
    assert got.stands_for.max() == 40
    assert got.stands_for.sum() == 4_000
    assert got.layers == full.layers
    assert (np.diff(got.layer_step) > 0).all()
    for quantity in ("grad_norm", "weight_norm", "update_ratio", "clip_coef"):
        for extreme in (np.nanmin, np.nanmax):
            np.testing.assert_array_equal(
                extreme(got.layer(quantity), axis=0), extreme(full.layer(quantity), axis=0), err_msg=quantity
            )
    np.testing.assert_array_equal(got.nonfinite, full.nonfinite)
    np.testing.assert_allclose(got.clip_rate, full.clip_rate, rtol=1e-6)
    assert 0.4 < got.clip_rate.min() < got.clip_rate.max() < 0.6
    np.testing.assert_array_equal(np.isnan(got.layer("nonfinite")), np.isnan(got.layer("clip_rate")))
    seen = (~np.isnan(full.layer("nonfinite"))).sum(axis=0)
    np.testing.assert_array_equal(np.nansum(got.layer("steps"), axis=0), seen)
    row = int(np.nanargmax(np.where(np.isfinite(got.layer("grad_norm")[:, 5]), got.layer("grad_norm")[:, 5], 0)))
    assert abs(got.layer_step[row] - 1_234) < 40
    absent = (got.layer_step > 1_050) & (got.layer_step < 2_950)
    assert np.isnan(got.layer("grad_norm")[absent, 11]).all()
    assert np.isnan(got.layer("nonfinite")[absent, 11]).all()


def test_the_totals_of_a_reduced_history_are_those_of_every_step(tmp_path):
    full = long_history()
    got = open_history(written(tmp_path, full), AT_MOST)
    np.testing.assert_array_equal(got.step, full.step)
    for name, values in full.per_step.items():
        np.testing.assert_array_equal(got.total(name), values)
    np.testing.assert_array_equal(got.step[got.layer_rows], got.layer_step)
    assert nonfinite_steps(got) == nonfinite_steps(full) == 2
    assert final(got, "loss") == final(full, "loss")
    assert diverged(got) == diverged(full)


def test_medians_of_a_reduced_history_are_near_the_true_ones(tmp_path):
    full = long_history()
    got = open_history(written(tmp_path, full), AT_MOST)
    true, near = (np.nanmedian(h.layer("grad_norm"), axis=0) for h in (full, got))
    np.testing.assert_allclose(near, true, rtol=0.25)


def test_a_non_finite_step_is_found_exactly(tmp_path):
    full = long_history()
    got = open_history(written(tmp_path, full), AT_MOST)
    assert diagnose(got)[0] == diagnose(full)[0]
    assert diagnose(got)[0].first_step == 2_222
    row = int(np.flatnonzero(got.layer_step == 3_003)[0])
    assert np.isinf(got.layer("grad_norm")[row, 7])
    np.testing.assert_array_equal(got.layer("grad_norm")[row], full.layer("grad_norm")[3_003])


def test_non_finite_steps_beyond_the_first_are_counted(tmp_path):
    full = long_history()
    full.layer("grad_norm")[500:2_000, 3], full.layer("nonfinite")[500:2_000, 3] = np.nan, 1
    full.per_step["nonfinite"] = np.nansum(full.layer("nonfinite"), axis=1, dtype=float)
    got = open_history(written(tmp_path, full), AT_MOST)
    assert len(got.layer_step) < 900
    assert nonfinite_steps(got) == nonfinite_steps(full) == 1_502
    np.testing.assert_array_equal(got.nonfinite, full.nonfinite)


def test_rules_count_the_steps_of_a_reduced_history_and_not_its_rows(tmp_path):
    full = long_history(clip="ClipByGlobalNorm(100.0)", max_norm=100.0)
    now_and_then = np.random.default_rng(4).random(full.layer("grad_norm").shape) < 0.4
    full.layer("grad_norm")[now_and_then] = 0  # the lowest of any 40 steps, but not of most steps
    got = open_history(written(tmp_path, full), AT_MOST)
    (found,) = clip_inert(got)
    assert found == clip_inert(full)[0]
    assert found.evidence["steps"] == 3_998
    assert dead_layer(got) == dead_layer(full) == []


def test_a_step_that_was_taken_again_counts_once(tmp_path):
    first = long_history(seed=1)
    again = changed(long_history(seed=2).slice(2_000, 4_000), attempt=np.ones(2_000, np.int64))
    folder = create_folder(tmp_path, "again")
    write_parts(folder, first.slice(0, 3_000), 3)
    writer = RunWriter(folder, again.run)
    writer.append(as_block(again))
    writer.close()
    full, got = open_history(folder), open_history(folder, AT_MOST)
    same(full, concat([first.slice(0, 3_000), again]))
    assert len(got) == 4_000
    np.testing.assert_array_equal(got.nonfinite, full.nonfinite)
    np.testing.assert_array_equal(np.nanmax(got.layer("grad_norm"), axis=0), np.nanmax(full.layer("grad_norm"), axis=0))
    np.testing.assert_allclose(got.clip_rate, full.clip_rate, rtol=1e-6)


def test_optimizers_that_step_apart_are_reduced_apart(tmp_path):
    full = long_history()
    who = np.where(np.arange(4_000) % 4 == 0, "slow", "fast").astype(object)
    for values in full.per_layer.values():
        values[who == "slow", :15] = values[who == "fast", 15:] = np.nan
    full = changed(full, optimizer=who)
    got = open_history(written(tmp_path, full), AT_MOST)
    lanes, true = got.lanes(), full.lanes()
    assert list(lanes) == list(true) == ["slow", "fast"]
    for name, lane in lanes.items():
        assert lane.layers == true[name].layers
        np.testing.assert_array_equal(lane.step, true[name].step)
        np.testing.assert_allclose(lane.clip_rate, true[name].clip_rate, rtol=1e-6)
        np.testing.assert_array_equal(
            np.nanmax(lane.layer("grad_norm"), axis=0), np.nanmax(true[name].layer("grad_norm"), axis=0)
        )


def test_a_slice_of_a_reduced_history_keeps_its_totals(tmp_path):
    full = long_history()
    got = open_history(written(tmp_path, full), AT_MOST).slice(1_000, 2_000)
    assert got.step.min() >= 1_000
    assert got.step.max() < 2_000
    assert 0 < len(got.layer_step) < 200
    assert got.layer_step.min() >= 1_000
    assert got.layer_step.max() < 2_000
    np.testing.assert_array_equal(got.total("loss"), full.slice(1_000, 2_000).total("loss"))


def test_parts_of_one_run_are_reduced_together(tmp_path):
    from gradwatch.storage.shared_folder import create_part, create_shared, read_facts

    shared = create_shared(tmp_path, "gan")
    true = {}
    for name in ("D", "G"):
        folder = create_part(shared, read_facts(shared), name)
        history = long_history(part=name)
        true[name] = changed(history, optimizer=np.full(len(history), name, dtype=object))
        write_parts(folder, true[name], 3)
    got = read_whole(shared, at_most=2 * AT_MOST)
    assert len(got) == 8_000
    assert (np.diff(got.step) >= 0).all()
    assert {"loss/D", "loss/G"} <= set(got.logged)
    for name, rows in got.lane_rows().items():
        np.testing.assert_array_equal(got.total(f"loss/{name}")[rows], true[name].total("loss"))
    text = render_html(build_report([got]))
    assert "8,000 (finished): D 4,000, G 4,000" in text


def test_of_two_parts_the_short_one_is_not_reduced(tmp_path):
    true = {"G": make_history(steps=100), "D": long_history()}
    got = read_whole(write_shared(tmp_path, **true), at_most=4 * AT_MOST)
    lanes = got.lanes()
    assert [lanes[name].is_reduced for name in "GD"] == [False, True]
    assert lanes["G"].stands_for.sum() == 100
    for name, lane in lanes.items():
        np.testing.assert_allclose(lane.clip_rate, true[name].clip_rate, rtol=1e-6)
    assert {outcome.optimizer for outcome in what_if(got, []) if outcome.kind == "ClipByNorm"} == {"G"}


def test_the_page_the_text_and_the_json_say_that_the_layers_are_reduced(tmp_path):
    full = long_history()
    folder = written(tmp_path, full)
    report, exact = build_report([open_history(folder, AT_MOST)]), build_report([open_history(folder)])
    says = "the layers of up to 40 steps in a row are reduced to three values"
    page = render_html(report)
    assert says in page
    assert says in render_markdown(report)
    assert says in json.loads(render_json(report))["runs"][0]["reduced"]
    assert says not in render_html(exact) + render_markdown(exact)
    (got,), (true,) = report.runs, exact.runs
    for name in ("steps", "clip_rate", "nonfinite_steps", "median_grad_norm", "p99_grad_norm", "verdict"):
        assert getattr(got, name) == getattr(true, name), name
    assert [layer.max_grad_norm for layer in got.layers] == [layer.max_grad_norm for layer in true.layers]
    assert "non-finite (2 steps)" in page
    assert norm_chart(report.histories[0]) == norm_chart(exact.histories[0])  # of all steps
    assert len(page) < len(render_html(exact)) * 1.1


# ---------------------------------------------------------------------------------------------------- the courier's end


def test_only_closed_parts_leave_while_the_run_goes_on(tmp_path, small_steps, monkeypatch):
    from gradwatch.tracking.courier import Courier

    history, folder = make_history(steps=300), create_folder(tmp_path, "live")
    write_parts(folder, history, 38)
    courier, sent = Courier(folder), []
    monkeypatch.setattr(courier, "sender", SimpleNamespace(client=None))
    monkeypatch.setattr(courier, "_upload", lambda client, path, table="": sent.append(f"{table}/{path.stem}"))
    courier._upload_tables(closed_only=True)
    assert sent == [f"{t}/part-{a:06d}-{a + 15:06d}" for t in ("layers", "steps") for a in (0, 16)]
    courier._upload_tables(closed_only=False)
    assert len(sent) == len(set(sent)) == 2 * len(list_parts(folder / "layers"))


def test_the_courier_wakes_when_a_manifest_changes(tmp_path):
    import time

    from gradwatch.tracking.courier import Courier

    path = tmp_path / "run.json"
    path.write_text("{}")
    courier = RetryingCourier(Courier(tmp_path), 1.0)
    courier.written = _changed(path)
    started = time.monotonic()
    _sleep(0.3, [courier])
    assert time.monotonic() - started >= 0.3
    courier.written -= 1
    started = time.monotonic()
    _sleep(60, [courier])
    assert time.monotonic() - started < 30


# -------------------------------------------------------------------------------------------------------- the measuring


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [("bench_store", ["--seconds", "0"]), ("bench_report", ["--rounds", "1"])],
)
def test_the_benchmarks_run(tmp_path, script, options):
    out = tmp_path / "out.json"
    command = [sys.executable, SCRIPTS / f"{script}.py", "--layers", "20", "--steps", "1500", "-o", out]
    subprocess.run([*command, "--dir", tmp_path, *options], check=True, capture_output=True, cwd=ROOT)
    found = json.loads(out.read_text())
    if script == "bench_store":
        assert [run["bytes_per_value"] < 3 for run in found["run"]["runs"]] == [True, True]
    else:
        assert found["page"]["highest_cell_over_its_row"] > 10
        assert found["page"]["mb"] < 12


@pytest.mark.slow
def test_a_training_thread_is_measured(store, tmp_path):
    sys.path.insert(0, str(SCRIPTS))
    try:
        from bench_store import training_thread
    finally:
        sys.path.remove(str(SCRIPTS))
    found = training_thread(5, 0.5, 0.005, store, tmp_path)
    assert found["steps"] > 5
    assert found["cpu_ms_a_step"] > 0
    assert found["close_seconds"] < 30


@pytest.mark.parametrize("stride", [4, 7, 50])
def test_a_bucket_stands_at_its_lowest_and_its_highest_norm(stride, monkeypatch):
    """Found for all buckets in one pass: a small file may hold millions of steps."""
    rng, sorts = np.random.default_rng(stride), Counter()
    norm = rng.choice([1.0, 2.0, 3.0, np.nan, *rng.random(5)], 500)
    norm[400] = np.inf
    steps = replace(make_history(steps=500, logged=()).by_step, values={"grad_norm": norm})
    monkeypatch.setattr(np, "lexsort", counting(np.lexsort, sorts))
    monkeypatch.setattr(np, "argsort", counting(np.argsort, sorts))
    lane = downsample._lane(steps, np.arange(500), stride)
    assert sum(sorts.values()) == 1
    for bucket, (first, low, high) in enumerate(lane.rows):
        (at,) = np.nonzero(lane.bucket == bucket)
        order = sorted(at, key=lambda t: (np.isnan(norm[t]), norm[t] if norm[t] == norm[t] else 0, t))
        if len(at) == 1:
            assert first == low == high == at[0]
        else:
            assert (low, high) == (order[0], order[-1])
            assert first == min({*at} - {low, high})


def test_of_few_layers_no_more_rows_are_kept_than_can_be_seen(monkeypatch):
    monkeypatch.setattr(downsample, "MAX_ROWS", 600)
    history = make_history(steps=3000, layers=("one",))
    kept = downsample.reduced([history.by_layer], history.by_step, 1, 10**9)
    assert len(kept) <= 600 + 2 * downsample.EDGE + 4


# ---------------------------------------------------------------------------------------------------------- many names


def names_anew(tmp_path, names, flushes=16):
    """A run that logs other names at each flush; `names` in all."""
    each = names // flushes
    folder = create_folder(tmp_path, f"names{names}")
    history = make_history(steps=flushes, logged=())
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for i in range(flushes):
        block = history.slice(i, i + 1)
        block.per_step.update({f"m{i * each + k}": np.ones(1) for k in range(each)})
        writer.pending.append(as_block(block))
        writer._write_parts()
    writer.close()
    return folder


def test_what_a_merge_reads_and_joins_does_not_grow_with_the_names(tmp_path, monkeypatch):
    """Each row group is read once, and filled up by type; not once more for each name that other parts have."""
    counted = []
    for names in (16, 256):
        folder, counts = names_anew(tmp_path, names), Counter()
        with monkeypatch.context() as patched:
            for holder, name in (
                (pq, "read_schema"), (pq.ParquetFile, "__init__"), (pq.ParquetFile, "read_row_group"),
                (pq.ParquetWriter, "write_table"), (pa, "nulls"), (pa, "table"), (pa, "concat_tables"),
            ):  # fmt: skip
                patched.setattr(holder, name, counting(getattr(holder, name), counts))
            assert merge(list_parts(folder / "steps"))
        assert counts["read_row_group"] == counts["table"] == 16
        assert counts["write_table"] == counts["concat_tables"] == 1
        counted.append(counts)
        assert len(open_history(folder)) == 16
    assert counted[0] == counted[1]


def counting(function, counts):
    def counted(*args, **kwargs):
        counts[function.__name__] += 1
        return function(*args, **kwargs)

    return counted


def test_a_merge_is_given_up_within_a_row_group(tmp_path):
    folder, asked = names_anew(tmp_path, 160), []
    before = sorted((folder / "steps").iterdir())
    assert not merge(list_parts(folder / "steps"), lambda: asked.append(None) or len(asked) > 3)
    assert len(asked) == 4, "it was joined on, for a row group that nobody wants"
    assert sorted((folder / "steps").iterdir()) == before


def test_parts_whose_names_are_too_many_for_one_stay_apart_and_later_ones_are_merged(
    tmp_path, small_steps, monkeypatch, caplog
):
    """The reader refuses a part of so many columns: what it can read is not made into what it cannot."""
    monkeypatch.setattr("gradwatch.storage.parquet.MAX_COLUMNS", 60)
    folder = create_folder(tmp_path, "churn")
    history = make_history(steps=8, logged=())
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for i in range(8):
        block = history.slice(i, i + 1)
        block.per_step.update({f"m{i if i < 4 else 0}.{k}": np.ones(1) for k in range(20)})
        writer.pending.append(as_block(block))
        writer._flush()
    writer.close()
    names = [part.path.stem for part in list_parts(folder / "steps")]
    assert names == [*(f"part-00000{i}" for i in range(4)), "part-000004-000007"]
    got = open_history(folder)
    assert (got.step.tolist(), got.problems) == (list(range(8)), ())
    assert len([r for r in caplog.records if "cannot be merged" in r.message]) == 1


def test_row_groups_have_fewer_rows_where_many_scalars_are_logged(tmp_path, monkeypatch):
    """The reader measures a row group before it reads it: rows x columns."""
    monkeypatch.setattr(compaction, "GROUP_VALUES", 16 * 100)
    monkeypatch.setattr("gradwatch.storage.parquet.MAX_GROUP_VALUES", 16 * 200)
    history, folder = make_history(steps=400), create_folder(tmp_path, "wide")
    write_parts(folder, history, 4)
    for table in ("steps", "layers"):
        merge(list_parts(folder / table))
    assert len(list_parts(folder / "steps")) == 1
    same(open_history(folder), history)


def test_a_part_that_is_left_alone_is_not_merged_across(tmp_path, small_steps):
    """What is merged from 0 to 4 stands for part 2 as well: it would be out of sight, and removed when resumed."""
    parts = [Part(i, i, tmp_path / f"part-{i:06d}.parquet") for i in (0, 1, 3, 4, 5, 6)]
    for part in parts:
        part.path.touch()
    assert [part.first for part in due(parts)] == [3, 4, 5, 6]


@pytest.mark.parametrize("what", ["a name", "a shape"])
def test_a_block_that_cannot_be_encoded_blocks_no_other(tmp_path, caplog, what):
    history, folder = make_history(steps=50), create_folder(tmp_path, "poison")
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    for start in range(0, 50, 10):
        block = history.slice(start, start + 10)
        if start == 20:
            if what == "a name":
                block.per_step["\ud800x"] = np.ones(10)
            else:
                block.per_step["loss"] = np.ones(9)
        writer.append(as_block(block))
    writer.flush()
    assert writer.lost == 10
    writer.close()
    got = open_history(folder)
    assert got.step.tolist() == [*range(20), *range(30, 50)]
    assert got.problems == ("10 steps were not recorded: 20 to 29",)
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.startswith("gradwatch: 10 steps from 20 on cannot be written: ")
    assert list(folder.rglob("*.tmp")) == []


def test_parts_that_share_few_names_are_not_spread_over_all_the_memory(tmp_path, monkeypatch):
    folder = names_anew(tmp_path, 1_600)
    monkeypatch.setattr("gradwatch.storage.parquet.MAX_STEPS_VALUES", 16 * 1_600)
    with pytest.raises(RunError, match="values that are read"):
        open_history(folder)
