"""Texts and bytes of strangers, made up by hypothesis: nothing but gradwatch's own errors, no hang, little memory.

A few hundred cases each, the same ones every time. `GRADWATCH_FUZZ=10000 scripts/test tests/test_sanitize_fuzz.py`
tries 10,000 new ones of each.
"""

import contextlib
import json
import os
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_run import make_run

from gradwatch import GradwatchError, parse
from gradwatch.analysis.comparison import settle
from gradwatch.analysis.rules import diagnose
from gradwatch.analysis.rules.facts import threshold
from gradwatch.cli import main
from gradwatch.cli.config import find_config
from gradwatch.open_run import open_histories, open_history
from gradwatch.policies.grammar import POLICIES, members
from gradwatch.report import build_report, render_html
from gradwatch.report.text import render_json, render_markdown
from gradwatch.report.wording import code_spans
from gradwatch.storage.downsample import MAX_VALUES
from gradwatch.storage.folder import list_parts

CASES = int(os.environ.get("GRADWATCH_FUZZ", "0"))


def fuzz(cases):
    """`cases` cases, or the long form."""
    return settings(
        max_examples=CASES or cases, derandomize=not CASES, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------- policy texts


NUMBERS = st.one_of(
    st.floats().map(repr), st.integers().map(str),
    st.sampled_from(["1e999", "-1e999", "9**9**9", "1j", "True", "None", "'x'", "b'x'", "()", "[1]", "{}", "...",
                     "-" * 90 + "1", "0x" + "f" * 900, "9" * 4000, "1_0", "f'{1}'", "lambda: 1", "(yield)", "a.b"]),
)  # fmt: skip
WORDS = st.sampled_from([*POLICIES, "ClipWith", "__import__", "eval", "print", "", "chain", "only"])
TERMS = st.recursive(
    st.one_of(NUMBERS, st.builds("{}({})".format, WORDS, NUMBERS)),
    lambda inner: st.builds(
        lambda name, args, key: f"{name}({', '.join(args)}{key})", WORDS, st.lists(inner, max_size=4),
        st.sampled_from(["", ", max_norm=1", ", **{}", ", p=2", ", axes=(0,)", "*[]", ", a=1, a=2"]),
    ),
    max_leaves=12,
)  # fmt: skip
TEXTS = st.one_of(st.text(), st.text("ClipByNorm(chain),.=*-'\"[]{}#\\\n0123456789e\x00"), TERMS)


def read_policy(text):
    """Everything that reads the text of a policy."""
    with contextlib.suppress(GradwatchError):
        policy = parse(text)
        assert parse(repr(policy)) == policy
    threshold(text)
    members(text)
    code_spans(text)


@fuzz(300)
@given(TEXTS)
def test_a_policy_text(text):
    read_policy(text)


@pytest.mark.parametrize(
    "text",
    [
        "ClipByNorm(1e999)", "ClipByNorm(9**9**9)", "chain(" * 10_000 + ")" * 10_000, "(" * 10_000, "-" * 9_999 + "1",
        "[" * 9_000, "ClipByGlobalNorm(" * 500 + "1" + ")" * 500, "x" * 10_000_000, "ClipByNorm(" * 1_000_000,
        "ClipByGlobalNorm(None)", "ClipByGlobalNorm('1')", "ClipByGlobalNorm(" + "9" * 400 + ")", "not " * 2400 + "1",
        "1" + "+1" * 4_900, "chain(" * 90 + "AGC(0.01)" + ")" * 90, "ClipByGlobalNorm({}[()])", "a." * 4_900 + "b",
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_an_extreme_policy_text(text):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        read_policy(text)


# --------------------------------------------------------------------------------------------------------- settings


TOML = st.one_of(
    st.text(),
    st.binary(),
    st.dictionaries(st.sampled_from(["clip", "every", "sweep", "tool", "jobs", "layers", "", "a\nb"]),
                    st.one_of(st.integers(), st.text(), st.lists(st.integers()), st.floats(), st.booleans()))
    .map(lambda table: "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in table.items())),
    st.sampled_from(["[" * 5000, "a = " + "[" * 5000, "a" + ".a" * 5000 + " = 1", "[tool]\ngradwatch = 3", "tool = 3",
                     "a = 1e999", "a = " + "9" * 5000, "[sweep]\n" * 2, "sweep = 1", "clip = 1979-05-27"]),
)  # fmt: skip


@fuzz(200)
@given(TOML, st.sampled_from(["gradwatch.toml", "pyproject.toml"]))
def test_a_settings_file(tmp_path_factory, text, name):
    folder = tmp_path_factory.getbasetemp() / "toml"
    folder.mkdir(exist_ok=True)
    for other in folder.iterdir():
        other.unlink()
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with contextlib.suppress(GradwatchError):
        config = find_config(folder)
        for command in ("run", "sweep"):
            with contextlib.suppress(GradwatchError):
                config.settings(command, ["clip", "every", "layers", "jobs"])


# ------------------------------------------------------------------------------------------------------------- refs


REFS = st.one_of(
    st.text(), st.text("0123456789abcdef", min_size=31, max_size=33), st.text("./~\x00*[]'\"%:@\n\\ ", max_size=40),
    st.sampled_from(["latest", "experiment:", "file:///etc/passwd", "a" * 5000, "/" * 5000, "\x00", ""]),
)  # fmt: skip


@fuzz(100)
@given(REFS)
def test_a_reference_to_a_run(tmp_path_factory, ref):
    if ref.startswith("experiment:") or len(ref) == 32 or ref == "latest":
        ref = f"{ref} "  # what asks MLflow is tested there
    with contextlib.suppress(GradwatchError):
        open_histories([ref], tmp_path_factory.getbasetemp() / "none")


# ------------------------------------------------------------------------------------------------------- run folders


class Whole(NamedTuple):
    folder: Path
    files: dict[Path, bytes]

    def __repr__(self):
        return self.folder.name  # a failure prints its case: not all bytes of it


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small run, made once, and its files as bytes."""
    folder = make_run(tmp_path_factory.mktemp("fuzz"), steps=30, blocks=1, layers=("a.weight", "b.weight", "b.bias"))
    return Whole(folder, {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()})


def restore(whole):
    folder, files = whole
    for table in ("layers", "steps"):
        for part in list_parts(folder / table):
            part.path.unlink()
    for path, data in files.items():
        path.write_bytes(data)
    return folder


def judge(folder):
    """Read it and say all there is to say of it, in less than 10 seconds of this process."""
    started = time.process_time()
    with warnings.catch_warnings(), contextlib.suppress(GradwatchError):
        warnings.simplefilter("ignore", RuntimeWarning)
        history = open_history(folder, MAX_VALUES)
        diagnose(history)
        report = build_report([history])
        render_html(report)
        render_markdown(report).encode()
        json.loads(render_json(report))
        settle([history, history], None, None, None)
    assert time.process_time() - started < 10


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)
FIELDS = ["name", "created", "part", "layers", "optimizers", "clip", "renorm", "every", "total_steps", "window",
          "mlflow_layers", "status", "ended", "attempt", "pid", "host", "tags", "params", "mlflow", "unheld",
          "format"]  # fmt: skip


@fuzz(80)
@given(st.one_of(st.binary(), st.dictionaries(st.sampled_from(FIELDS), st.one_of(JSON, TEXTS), max_size=2)))
def test_a_manifest(whole, change):
    folder = restore(whole)
    if isinstance(change, dict):
        change = json.dumps({**json.loads((folder / "run.json").read_text()), **change}).encode()
    (folder / "run.json").write_bytes(change)
    judge(folder)


@pytest.mark.slow
@fuzz(80)
@given(st.sampled_from(["layers", "steps"]), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=6),
       st.floats(0, 1), st.booleans())  # fmt: skip
def test_the_bytes_of_a_part(whole, table, changes, end, cut):
    folder = restore(whole)
    path = list_parts(folder / table)[0].path
    data = bytearray(path.read_bytes())
    for at, value in changes:
        data[int(at * (len(data) - 1))] = value
    path.write_bytes(data[: int(end * len(data))] if cut else data)
    judge(folder)


NUMBER = st.one_of(st.floats(width=32), st.sampled_from([0.0, np.nan, np.inf, -np.inf, 3e38, -1.0, 1e-45]))


@pytest.mark.slow
@fuzz(100)
@given(st.data())
def test_the_rows_of_a_part(whole, data):
    """Any numbers, any order, any steps that the limits let through."""
    folder = restore(whole)
    for table in ("layers", "steps"):
        path = list_parts(folder / table)[0].path
        rows = pq.read_table(path)
        count = data.draw(st.integers(0, 40))
        taken = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=count, max_size=count))
        rows = rows.take(pa.array(taken, pa.int64()))
        steps = data.draw(
            st.lists(st.one_of(st.integers(-1, 50), st.integers(0, 2**53)), min_size=count, max_size=count)
        )
        rows = rows.set_column(rows.column_names.index("step"), "step", pa.array(steps, pa.int64()))
        for name in data.draw(st.sets(st.sampled_from(rows.column_names[3 + (table == "layers") :]), max_size=3)):
            values = pa.array(data.draw(st.lists(NUMBER, min_size=count, max_size=count)), pa.float32())
            rows = rows.set_column(rows.column_names.index(name), name, values)
        pq.write_table(rows, path)
    judge(folder)


def test_the_command_line_says_it_in_one_line(whole):
    folder = restore(whole)
    for path in sorted(Path(folder).rglob("*.parquet")):
        path.write_bytes(b"PAR1" + b"\xff" * 64 + b"PAR1")
    result = CliRunner().invoke(main, ["show", str(folder)])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
