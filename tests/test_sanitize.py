"""Runs of strangers are data: what is broken, huge or hostile is one line and exit code 2, soon, in little memory."""

import json
import os
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from make_run import as_block, make_history, make_run

from gradwatch import RunError, open_history
from gradwatch.cli import main
from gradwatch.recording.courier_process import start_courier
from gradwatch.sanitize import MAX_JSON, MAX_NAME, markdown, printable, read_json, terminal
from gradwatch.storage import parquet
from gradwatch.storage.delivery_cursor import read_cursor
from gradwatch.storage.downsample import MAX_VALUES
from gradwatch.storage.folder import list_parts, read_manifest, write_json
from gradwatch.storage.lock import Lock
from gradwatch.storage.run_reader import read_run
from gradwatch.storage.writer import RunWriter

READERS = ("show", "check", "report", "compare")


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def refused(folder, words=""):
    """All commands that read say in one line why they do not, and nothing else happens."""
    for command in READERS:
        result = run(command, folder, *(["-o", "-"] if command == "report" else []))
        assert result.exit_code == 2, (command, result.output, result.exception)
        assert result.stderr.count("\n") == 1, result.stderr
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr) < 1000
        assert words in result.stderr, result.stderr
        assert result.stderr[:-1].isprintable()


# ----------------------------------------------------------------------------------------------------- the manifest


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path, steps=40)


def rewrite(folder, **changes):
    data = json.loads((folder / "run.json").read_text())
    data.update(changes)
    (folder / "run.json").write_text(json.dumps(data))


HUGE = 10**30
BAD_FIELDS = [
    ("name", 3), ("name", None), ("name", ["a"]), ("name", "x" * (MAX_NAME + 1)), ("name", "\ud800"),
    ("created", "yesterday"), ("created", 5), ("created", None),
    ("layers", "all"), ("layers", {"a": 1}), ("layers", [3]), ("layers", [{}]), ("layers", [{"name": "a"}]),
    ("layers", [{"name": "a", "shape": [-1]}]), ("layers", [{"name": "a", "shape": [HUGE]}]),
    ("layers", [{"name": "a", "shape": [2**40, 2**40]}]), ("layers", [{"name": "a", "shape": "12"}]),
    ("layers", [{"name": "a", "shape": [1] * 1000}]), ("layers", [{"name": ["a"], "shape": [1]}]),
    ("layers", [{"name": "a", "shape": [1], "frozen": "x"}]), ("layers", [{"name": "a", "shape": [1.5]}]),
    ("optimizers", ["SGD"]), ("optimizers", [{"name": 3}]), ("optimizers", [{"settings": 3}]),
    ("optimizers", [{"settings": {"lr": {"a": {"b": 1}}}}]),
    ("clip", 5), ("clip", ["ClipByNorm(1.0)"]), ("renorm", True),
    ("every", 0), ("every", "10"), ("every", True), ("every", HUGE), ("window", 0), ("window", -5), ("window", None),
    ("total_steps", -1), ("total_steps", "many"), ("mlflow_layers", -1), ("attempt", -1), ("attempt", HUGE),
    ("pid", 0), ("pid", -1), ("pid", HUGE), ("host", 5), ("status", ["FINISHED"]), ("ended", "later"),
    ("tags", ["a"]), ("params", {"a": 1}), ("params", 5), ("mlflow", "http://x"), ("mlflow", {"run_id": ["a"]}),
    ("unheld", "a"), ("unheld", [1]), ("part", 7),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS, ids=lambda v: repr(v)[:40])
def test_a_field_of_another_kind_or_size_is_named(folder, field, value):
    rewrite(folder, **{field: value})
    with pytest.raises(RunError, match=rf"run\.json cannot be read as a run's manifest: {field}\b.*wanted") as raised:
        read_manifest(folder)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xff\xfe\xfa", "run.json"), (b"", "run.json"), (b"[]", "wanted an object"), (b"null", "wanted an object"),
        (b'"name"', "wanted an object"), (b"[" * 200_000, "nested too deeply"), (b'{"name": ' * 50_000, "too deeply"),
        (b'{"name": 1' + b"0" * 10_000 + b"}", "run.json"), (b'{"name": "\x00"}', "run.json"), (b"{}", "name is None"),
    ],
    ids=lambda v: repr(v)[:30],
)  # fmt: skip
def test_a_manifest_that_is_none_is_refused_in_one_line(folder, text, words):
    (folder / "run.json").write_bytes(text)
    refused(folder, words)


def test_a_huge_manifest_is_not_read(folder):
    with (folder / "run.json").open("wb") as file:
        file.truncate(MAX_JSON + 1)  # a sparse file
    refused(folder, "at most 33,554,432 are read")


@pytest.mark.slow
def test_too_many_layers_are_refused_quickly(folder):
    rewrite(folder, layers=[{"name": "a", "shape": []}] * 100_001)
    started = time.monotonic()
    refused(folder, "a list of at most 100,000 layers")
    assert time.monotonic() - started < 20


def test_what_a_training_writes_is_accepted(folder):
    """The limits must not refuse anything that the train side makes."""
    settings = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": float("nan"), "fused": None, "foreach": False, "x": "y" * 99}
    rewrite(folder, clip="chain(" * 4000 + "…", params={"config": "x" * 1_000_000, "": ""}, unheld=["a"], part="G",
            optimizers=[{"name": f"SGD {i}", "class": "SGD", "settings": settings} for i in range(3000)],
            tags={"n": 5, "b": True}, mlflow={"run_id": None, "joined": False}, later={"deep": [[[]]]})  # fmt: skip
    assert read_manifest(folder).params["config"]
    assert run("show", folder).exit_code == 0


# -------------------------------------------------------------------------------------------------------------- links


@pytest.fixture
def secret(tmp_path):
    (tmp_path / "secret").mkdir()
    return make_run(tmp_path / "secret", steps=7)


def test_a_link_in_a_run_folder_is_not_followed(folder, secret, tmp_path):
    for name in ("run.json", "steps", "layers"):
        aside = (folder / name).rename(tmp_path / "aside")
        (folder / name).symlink_to(secret / name)
        if name == "run.json":
            refused(folder, "it is a link")
        else:
            assert list_parts(folder / name) == []
        (folder / name).unlink()
        aside.rename(folder / name)
    part = list_parts(folder / "steps")[-1].path
    part.unlink()
    part.symlink_to(list_parts(secret / "steps")[0].path)
    assert part not in [p.path for p in list_parts(folder / "steps")]
    with pytest.raises(ValueError, match="link"):
        parquet.read_steps(part, 0)


def test_a_linked_part_of_a_run_is_left_out(folder, secret, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    write_json(shared / "parts.json", {"name": "gan", "created": "2026-01-01T00:00:00+00:00"})
    folder.rename(shared / "G")
    (shared / "D").symlink_to(secret)
    assert len(open_history(shared)) == 40


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(folder):
    part = list_parts(folder / "layers")[0].path
    for path in (part, folder / "findings.json", folder / "run.json"):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    with pytest.raises(ValueError, match="no file"):
        read_json(folder / "findings.json")
    assert part not in [p.path for p in list_parts(folder / "layers")]
    assert run("show", folder).exit_code == 2


def test_what_is_written_into_a_folder_never_goes_through_a_link(folder, tmp_path):
    (tmp_path / "mine").write_text("precious")
    (folder / f".cursor.json.{os.getpid()}.tmp").symlink_to(tmp_path / "mine")
    (folder / "cursor.json").symlink_to(tmp_path / "mine")
    write_json(folder / "cursor.json", {"done": True})
    assert (tmp_path / "mine").read_text() == "precious"
    assert read_cursor(folder) == {"done": True}


def test_a_lock_is_not_taken_through_a_link(folder, tmp_path):
    (tmp_path / "mine").write_text("precious")
    (folder / "writer.lock").unlink()
    (folder / "writer.lock").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="is a link"):
        Lock(folder)
    assert (tmp_path / "mine").read_text() == "precious"


@pytest.mark.parametrize("table", ["layers", "steps"])
@pytest.mark.parametrize("what", ["the table", "a part"])
def test_who_records_to_a_folder_with_a_link_is_refused_before_anything_is_removed(folder, tmp_path, table, what):
    """Data that was moved to another disk and linked is data: a resumed run neither removes it nor writes there."""
    moved = folder / table if what == "the table" else list_parts(folder / table)[-1].path
    moved.rename(tmp_path / "moved")
    moved.symlink_to(tmp_path / "moved")
    before = {path: path.lstat().st_mtime_ns for path in [*folder.rglob("*"), *(tmp_path / "moved").rglob("*")]}
    lock = folder / "writer.lock"
    with pytest.raises(RunError, match=f"{moved} is a link"):
        RunWriter(folder, make_history().run)
    after = {path: path.lstat().st_mtime_ns for path in [*folder.rglob("*"), *(tmp_path / "moved").rglob("*")]}
    assert {**after, lock: 0} == {**before, lock: 0}
    assert any("is a link, and is not followed" in text for text in read_run(folder).problems)
    moved.unlink()
    (tmp_path / "moved").rename(moved)
    RunWriter(folder, make_history().run).close()  # the lock was let go
    assert read_run(folder).problems == ()


def test_a_table_that_becomes_a_link_while_it_is_recorded_is_not_written_through(folder, tmp_path, caplog):
    history = make_history(steps=20)
    writer = RunWriter(folder, history.run, flush_seconds=1000)
    (folder / "layers").rename(tmp_path / "moved")
    (folder / "layers").symlink_to(tmp_path / "moved")
    before = sorted((tmp_path / "moved").iterdir())
    writer.append(as_block(history))
    writer.flush()
    assert sorted((tmp_path / "moved").iterdir()) == before
    assert "layers is a link" in caplog.text
    (folder / "layers").unlink()
    (tmp_path / "moved").rename(folder / "layers")
    writer.close()
    assert len(list_parts(folder / "layers")) == len(before) + 1


def test_a_couriers_log_is_not_written_through_a_link(folder, tmp_path, caplog):
    (tmp_path / "mine").write_text("precious")
    (folder / "courier.log").symlink_to(tmp_path / "mine")
    assert start_courier(folder) is None
    assert "courier.log is a link" in caplog.text
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_link_is_not_uploaded(tmp_path):
    pytest.importorskip("mlflow")
    from gradwatch.tracking.client import upload

    (tmp_path / "mine").write_text("precious")
    (tmp_path / "parts.json").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="is a link"):
        upload(None, "0" * 32, tmp_path / "parts.json")


@pytest.mark.parametrize("name", ["../../x", "..", "/etc/passwd", "a\x00b", "\x1b]0;x\x07", "a" * 300])
def test_a_layers_name_is_no_path(folder, tmp_path, name):
    history = make_history(steps=5, layers=(name, "fc"), name=name)
    before = set(tmp_path.rglob("*"))
    made = make_run(tmp_path, steps=5, layers=(name, "fc"), name=name)
    assert made.parent == tmp_path
    assert open_history(made).layers == history.layers
    assert run("report", made, "-o", tmp_path / "r.html").exit_code == 0
    new = set(tmp_path.rglob("*")) - before
    assert all(path == tmp_path / "r.html" or path == made or made in path.parents for path in new)


# -------------------------------------------------------------------------------------------------------------- parts


def good(folder, name):
    return pq.read_table(list_parts(folder / name)[0].path)


def swap(folder, name, table, **options):
    """The only part of a table is this one."""
    parts = list_parts(folder / name)
    for part in parts:
        part.path.unlink()
    until = f"-{parts[-1].last:06d}" if parts[-1].last else ""  # as many as the other table has
    path = folder / name / f"part-000000{until}.parquet"
    pq.write_table(table, path, **options)
    return path


def with_column(table, name, values):
    at = table.column_names.index(name)
    return table.set_column(at, name, values)


def names(values, of):
    return pa.DictionaryArray.from_arrays(pa.array(values, pa.int32()), pa.array(of))


BAD_TABLES = {
    "no step": lambda t: t.drop_columns("step"),
    "no layer": lambda t: t.drop_columns("layer"),
    "no columns at all": lambda t: t.select([]),
    "text steps": lambda t: with_column(t, "step", pa.array(["1"] * len(t))),
    "float steps": lambda t: with_column(t, "step", pa.array([0.5] * len(t))),
    "a step without a number": lambda t: with_column(t, "step", pa.array([None] * len(t), pa.int64())),
    "negative steps": lambda t: with_column(t, "step", pa.array(range(-len(t), 0))),
    "giant steps": lambda t: with_column(t, "step", pa.array([2**62] * len(t))),
    "unsigned steps": lambda t: with_column(t, "step", pa.array([2**64 - 1] * len(t), pa.uint64())),
    "negative attempts": lambda t: with_column(t, "attempt", pa.array([-1] * len(t), pa.int32())),
    "giant attempts": lambda t: with_column(t, "attempt", pa.array([2**60] * len(t))),
    "numbers for layers": lambda t: with_column(t, "layer", pa.array([3] * len(t))),
    "lists for layers": lambda t: with_column(t, "layer", pa.array([["a"]] * len(t))),
    "no layer in a row": lambda t: with_column(t, "layer", pa.array([None] * len(t), pa.string())),
    "text norms": lambda t: with_column(t, "grad_norm", pa.array(["1.0"] * len(t))),
    "nested norms": lambda t: with_column(t, "grad_norm", pa.array([{"a": [1.0]}] * len(t))),
    "lists of norms": lambda t: with_column(t, "grad_norm", pa.array([[1.0, 2.0]] * len(t))),
    "binary norms": lambda t: with_column(t, "grad_norm", pa.array([b"\x00"] * len(t))),
    "dates": lambda t: with_column(t, "grad_norm", pa.array([0] * len(t), pa.timestamp("us"))),
    "decimals": lambda t: with_column(t, "grad_norm", pa.array([1] * len(t), pa.decimal128(20, 2))),
    "a long name": lambda t: with_column(t, "layer", names([0] * len(t), ["x" * (MAX_NAME + 1)])),
    "many columns": lambda t: pa.table({f"c{i}": pa.array([1.0]) for i in range(10_001)}),
    "a column twice": lambda t: t.append_column("grad_norm", t["grad_norm"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_TABLES)
def test_a_part_of_another_shape_is_named_and_left_out(folder, kind):
    swap(folder, "layers", BAD_TABLES[kind](good(folder, "layers")))
    history = open_history(folder, MAX_VALUES)
    assert len(history) == 40  # the steps table is whole
    (problem,) = history.problems
    assert re.match(r"layers/part-000000(-\d+)?\.parquet is unreadable \(", problem)
    assert len(problem) < 200
    result = run("show", folder)
    assert result.exit_code == 0, result.exception
    assert "incomplete: layers/part-000000" in result.output


@pytest.mark.parametrize("size", [0, 3, 8, 100, 1000, -4, -1])
def test_a_part_that_was_cut_short_is_named(folder, size):
    for table in ("layers", "steps"):
        for part in list_parts(folder / table):
            data = part.path.read_bytes()
            part.path.write_bytes(data[:size])
    refused(folder, "is unreadable")


def test_a_footer_that_claims_gigabytes_is_not_believed(folder):
    for table in ("layers", "steps"):
        for part in list_parts(folder / table):
            data = part.path.read_bytes()
            part.path.write_bytes(data[:-8] + (2**31 - 1).to_bytes(4, "little") + b"PAR1")
    refused(folder, "bytes to describe itself")


@pytest.mark.slow
def test_few_bytes_that_unpack_to_gigabytes_are_refused_unread(folder):
    """400 million zeros are a few kilobytes on disk."""
    zeros = pa.array(np.zeros(1 << 20, np.float32))
    key = pa.array(np.zeros(1 << 20, np.int64))
    name = names(np.zeros(1 << 20, np.int32), ["a"])
    block = {"step": key, "attempt": key, "optimizer": name, "layer": name, **{f"q{i}": zeros for i in range(4)}}
    table = pa.table(block)
    for of, columns in (("layers", table.column_names), ("steps", [c for c in table.column_names if c != "layer"])):
        many = pa.concat_tables([table.select(columns)] * 50)
        path = swap(folder, of, many, row_group_size=1 << 30, compression="zstd")
        assert path.stat().st_size < 2_000_000
    before = pa.default_memory_pool().bytes_allocated()
    refused(folder, "values of")
    assert pa.default_memory_pool().bytes_allocated() - before < 50 << 20


@pytest.mark.slow
def test_layers_that_have_nothing_in_common_are_not_multiplied(folder):
    """20,000 rows, each with a step and a layer of its own, would be a table of 400 million cells."""
    n = 20_000
    table = pa.table({"attempt": pa.array(np.zeros(n, np.int32)), "optimizer": names(np.zeros(n, np.int32), ["a"]),
                      "step": pa.array(np.arange(n)), "layer": names(np.arange(n), [f"l{i}" for i in range(n)]),
                      "grad_norm": pa.array(np.ones(n, np.float32))})  # fmt: skip
    swap(folder, "layers", table)
    assert "have little in common" in open_history(folder, MAX_VALUES).problems[0]
    for part in list_parts(folder / "layers"):
        part.path.unlink()
    for i in range(200):  # and neither are those of many parts
        pq.write_table(table.slice(100 * i, 100), folder / "layers" / f"part-{i:06d}.parquet")
    with pytest.raises(RunError, match="have little in common"):
        open_history(folder, MAX_VALUES)


def test_a_manifest_that_hides_its_layers_does_not_widen_a_reduced_run(folder):
    """The rows of a reduced run are chosen by what the manifest says of its layers."""
    rewrite(folder, layers=[])
    n, key, one = 3000, pa.array(np.zeros(9000, np.int32)), names(np.zeros(9000, np.int32), ["a"])
    keys = {"attempt": key, "optimizer": one, "step": pa.array(np.arange(9000))}
    swap(folder, "steps", pa.table({**keys, "grad_norm": pa.array(np.ones(9000))}).slice(0, n))
    norms = {f"q{i}": pa.array(np.ones(9000, np.float32)) for i in range(30)}
    layer = names(np.arange(9000), [f"l{i}" for i in range(9000)])
    swap(folder, "layers", pa.table({**keys, "step": pa.array(np.zeros(9000, int)), "layer": layer, **norms}))
    with pytest.raises(RunError, match="this run holds"):
        open_history(folder, at_most=10_000)


def test_a_dictionary_that_names_a_layer_twice_is_refused():
    with pytest.raises(ValueError, match="there twice"):
        parquet._codes(pa.chunked_array([names([0, 1], ["a", "a"])]), 10)


def test_very_many_optimizers_are_refused(folder):
    n = 1000
    table = pa.table({"attempt": pa.array(np.zeros(n, np.int32)), "step": pa.array(np.arange(n)),
                      "optimizer": names(np.arange(n), [f"o{i}" for i in range(n)]),
                      "grad_norm": pa.array(np.ones(n))})  # fmt: skip
    swap(folder, "steps", table)
    assert "more than 256 names" in open_history(folder).problems[0]


@pytest.mark.parametrize("values", ["nan", "inf", "-inf", "-1", "1e38", "0", "1e-45"])
def test_any_number_is_judged_and_drawn(folder, tmp_path, values):
    for of in ("layers", "steps"):
        table = good(folder, of)
        for name in table.column_names:
            if name not in ("attempt", "optimizer", "step", "layer"):
                table = with_column(table, name, pa.array(np.full(len(table), float(values))))
        swap(folder, of, table)
    for command in READERS:
        result = run(command, folder, *(["-o", tmp_path / "x.html"] if command == "report" else []))
        assert result.exit_code in (0, 1), (command, result.exception)
        assert result.exception is None or isinstance(result.exception, SystemExit)


def test_duplicate_and_shuffled_rows_are_put_in_order(folder):
    rng = np.random.default_rng(0)
    for of in ("layers", "steps"):
        table = pq.read_table(folder / of)
        table = pa.concat_tables([table, table]).take(rng.permutation(2 * len(table)))
        swap(folder, of, table)
    history = open_history(folder)
    assert list(history.step) == sorted(set(history.step))
    assert run("show", folder).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("steps", [3, 60])
def test_a_model_of_very_many_layers_is_shown_in_time_linear_in_them(tmp_path, steps):
    def seconds_of_cpu(blocks):
        layers = tuple(f"blocks.{i}.fc.{what}" for i in range(blocks) for what in ("weight", "bias"))
        kinds = {
            f"blocks.{i}.{part}": kind for i in range(blocks) for part, kind in (("fc", "Linear"), ("act", "ReLU"))
        }
        folder = make_run(tmp_path / str(blocks), steps=steps, blocks=1, layers=layers, modules=kinds)
        started = time.process_time()
        result = run("show", folder)
        assert result.exit_code == 0
        assert result.output.count("\n") < 1100
        assert f"{2 * blocks - 1000:,} more layers" in result.output
        return time.process_time() - started

    seconds_of_cpu(501)  # what is imported and made once
    assert seconds_of_cpu(4_008) < 20 * seconds_of_cpu(501)  # 8 times as many: 8, and 64 where each looks at each


# --------------------------------------------------------------------------------------------------------------- text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a�[31mb"), ("a\x00\n\u202eb", "a���b"), ("fc1.weight", "fc1.weight"), ("\ud800", "�"),
        ("größe ✓ 漢", "größe ✓ 漢"), ("\u2028\u200b", "��"), ("", ""),
    ],
)  # fmt: skip
def test_printable(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["::error::x", "  ::set-output name=a::b", "a ##[add-mask]b", "\t::x", "::"])
def test_a_line_is_no_command_to_a_workflow(text):
    shown = terminal(text)
    assert not shown.strip().startswith("::")
    assert "##[" not in shown


def test_markdown_shows_names_as_they_are():
    text = "<img src=x onerror=a> [a](javascript:b) ![c](d) `e` *f* | g\nh &lt; $x$ ~~y~~ # z \\"
    shown = markdown(text)
    assert "\n" not in shown
    for sign in "<>[]`*|&$~#!":
        assert shown.count(sign) == shown.count(f"\\{sign}")
    assert shown.replace("\\", "") == text.replace("\\", "").replace("\n", " ")


HOSTILE = "\x1b[31m[red]::error::|<b>\u202e\n::warning::x"


def test_hostile_names_reach_no_terminal(tmp_path):
    folder = make_run(tmp_path, steps=80, layers=("a" + HOSTILE, "##[x]", "b"), name="::add-mask::" + HOSTILE,
                      logged=(HOSTILE,), params={HOSTILE: HOSTILE}, clip=HOSTILE, nan_at=50)  # fmt: skip
    for args in (
        ["show"],
        ["check"],
        ["check", "--format", "github"],
        ["compare"],
        ["report", "--format", "md", "-o", "-"],
    ):
        result = run(args[0], folder, *args[1:])
        assert isinstance(result.exception, SystemExit | None), result.exception
        for line in result.output.splitlines():
            assert line.isprintable(), (args, line)
            commands = line.strip().startswith("::") and not line.startswith(("::error title=", "::warning title=",
                                                                             "::notice title="))  # fmt: skip
            assert not commands, (args, line)
            assert "##[" not in line or "github" in args, (args, line)
    elsewhere = run("show", str(folder) + "\x1b[31m\n::error::x")
    assert elsewhere.exit_code == 2
    assert elsewhere.stderr[:-1].isprintable()


def test_cells_of_a_csv_are_no_formulas(tmp_path):
    import csv
    import io

    layers = ("=cmd|' /C calc'!A0", "+1", "-x", "@sum", "\tx", "fc.weight")
    folder = make_run(tmp_path, steps=20, layers=layers, clip="=1+1", name="=2", params={"=a": "@b", "seed": "-3"})
    other = make_run(tmp_path, steps=20, layers=layers, clip=None, params={"=a": "c", "seed": "1"})
    for args in (["report", folder], ["report", folder, other], ["compare", folder, other]):
        result = run(*args, "--format", "csv", *(["-o", "-"] if args[0] == "report" else []))
        assert result.exit_code == 0, result.exception
        rows = list(csv.reader(io.StringIO(result.output)))
        assert len(rows) > 1
        for cell in (cell for row in rows for cell in row):
            if cell.lstrip().startswith(tuple("=+-@")):
                float(cell)  # a number, and nothing else
