"""The benchmarks run, their figures are what they say they are, and docs/performance.md is printed from them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "bench"


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


def bench(name, *options, output, **env):
    """The JSON of a run of a script."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(SCRIPTS / name), *options, "-o", str(output)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **env}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(output.read_text())


@pytest.mark.slow
def test_bench_step_compares_every_variant_with_torch(tmp_path):
    options = ("--device", "cpu", "--models", "mlp-6,gpt-tiny", "--only", "fused", "--rounds", "1", "--steps", "2")
    report = bench("bench_step.py", *options, output=tmp_path / "step.json")
    (ratios,) = report["ratios"].values()
    gpt = report["gpts"]["gpt-tiny"]
    assert ratios.pop("1 in 10 clipped, gradwatch / torch") > 0
    for found in (ratios, gpt["phase"], gpt["whole"]):
        assert found.pop("torch clip + step") == 1
        assert set(found) == {"gradwatch clip + step", "step alone", "gradwatch no clip + step"}
        assert all(ratio > 0 for ratio in found.values())
    assert all(n["calls"] > 0 for n in gpt["launches"].values())
    assert gpt["launches"]["step alone"]["calls"] < gpt["launches"]["torch clip + step"]["calls"]


FAKE_VALGRIND = """\
#!{python}
import json, pathlib, subprocess, sys
options = [a for a in sys.argv[1:] if a.startswith("--") and "=" in a]
command = sys.argv[1 + len(options):]
folder = pathlib.Path(next(o for o in options if o.startswith("--log-file=")).partition("=")[2]).parent
subprocess.run(command, check=True)
for n, pids in enumerate(json.loads((folder / "children.json").read_text()).values(), start=1):
    for pid, count in zip(pids, (1000, 1000 + 500 * n)):
        (folder / f"{{pid}}.log").write_text(f"=={{pid}}== Collected : {{count}}\\n")
"""


@pytest.mark.slow
def test_instructions_are_those_of_the_steps_between_two_counts(tmp_path):
    """Five steps between them; the n-th variant is said to have taken 500 n instructions for these."""
    fake = tmp_path / "valgrind"
    fake.write_text(FAKE_VALGRIND.format(python=sys.executable))
    fake.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    options = ("--device", "cpu", "--instructions", "--models", "mlp-6", "--only", "fused")
    report = bench("bench_step.py", *options, output=tmp_path / "step.json", PATH=path)
    (found,) = report["instructions"].values()
    assert [v["instructions"] for v in found.values()] == [100, 200, 300, 400]
    assert [v["ratio"] for v in found.values()] == [1, 2, 3, 4]


@pytest.mark.slow
def test_bench_peers_trains_each_way_beside_the_bases(tmp_path):
    options = ("--rounds", "1", "--steps", "2", "--models", "mlp-6", "--only", "fused", "--ways", "uninstrumented")
    report = bench("bench_peers.py", *options, output=tmp_path / "peers.json")
    (ways,) = report["results"].values()
    assert set(ways) == {"uninstrumented", "torch clip_grad_norm_", "gradwatch, files"}
    assert all(found["step_ms"] > found["phase_ms"] > 0 for found in ways.values())
    assert "Composer OptimizerMonitor" in report["absent"]


@pytest.mark.parametrize(("minutes", "rounds"), [(1, 3), (-1, 1)])
def test_where_there_is_no_more_time_a_case_of_peers_has_one_round(minutes, rounds, scripts):
    from bench_peers import Round, measure

    class Asked:
        name = "a way"

        def ask(self, question):
            pass

        def round(self, steps, most):
            return Round(1.0, 1.0, 1.0)

    found = measure([Asked()], "mlp-6", "fused AdamW", 3, 1, 1.0, time.monotonic() + minutes * 60)
    assert [*map(len, found.values())] == [rounds]


WITH_A_HELPER = """
import subprocess
helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(helper.pid, flush=True)
helper.wait()
"""


def test_no_helper_of_a_way_of_peers_stays_behind_stopped_where_its_process_died(scripts, monkeypatch):
    import bench_peers
    from bench_peers import Trainer, each

    monkeypatch.setattr(bench_peers, "END_SECONDS", 0.5)  # where nobody reaps orphans they seem to go on
    with subprocess.Popen([sys.executable, "-c", WITH_A_HELPER], stdout=subprocess.PIPE, text=True) as process:
        helper = psutil.Process(int(process.stdout.readline()))
        trainer = object.__new__(Trainer)
        trainer.process, trainer._met = (
            SimpleNamespace(pid=process.pid, terminate=process.kill, join=process.wait),
            set(),
        )
        each(trainer._family(), psutil.Process.suspend)
        process.kill()
        process.wait()
        for _ in range(100):  # a signal comes a moment after it was sent
            if helper.status() == psutil.STATUS_STOPPED:
                break
            time.sleep(0.05)
        assert helper.status() == psutil.STATUS_STOPPED
        trainer.end()
    assert not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE


def test_a_benchs_own_load_is_not_the_machines(scripts, monkeypatch):
    from bench_common import machine
    from bench_output import STARTING_LOAD

    monkeypatch.setattr(os, "getloadavg", lambda: (STARTING_LOAD + 5,) * 3)
    assert machine()["load"] == STARTING_LOAD


def test_the_figures_of_peers_are_what_the_report_says(scripts):
    """Two rounds in milliseconds a step; the medians of what differs within a round."""
    from bench_peers import BARE, CLIP, OURS, Round, figures

    def rounds(*milliseconds):
        return [Round(ms / 1e3, (ms - 5) / 1e3, 2 * ms / 1e3) for ms in milliseconds]

    found = figures({
        BARE: rounds(10, 20), CLIP: rounds(12, 22), OURS: rounds(13, 23), ".item() loop": rounds(16, 26),
        "wandb.watch": rounds(32, 42),
    })  # fmt: skip
    assert found[CLIP]["added_ms"] == pytest.approx(2)
    assert found[OURS]["added_ms"] == found[OURS]["added_phase_ms"] == pytest.approx(1)
    loop, wandb = found[".item() loop"], found["wandb.watch"]
    assert loop["added_ms"] == pytest.approx(4)
    assert loop["to_bare"] == pytest.approx((1.6 + 1.3) / 2)
    assert loop["times_gradwatch"] == loop["times_gradwatch_phase"] == loop["times_gradwatch_cpu"] == pytest.approx(4)
    assert loop["times_gradwatch_over_bare"] == pytest.approx(2)
    assert "phase_ms" not in wandb
    assert wandb["times_gradwatch_over_bare"] == pytest.approx(22 / 3, abs=1e-3)


def test_nothing_is_divided_by_a_cost_that_is_not_there(scripts):
    from bench_peers import BARE, CLIP, OURS, Round, figures

    rounds = {BARE: 10, CLIP: 12, OURS: 12, ".item() loop": 16}
    loop = figures({name: [Round(ms, ms - 5, ms)] for name, ms in rounds.items()})[".item() loop"]
    assert not {"times_gradwatch", "times_gradwatch_phase", "times_gradwatch_cpu"} & loop.keys()
    assert loop["times_gradwatch_over_bare"] == pytest.approx(3)


@pytest.mark.slow
def test_bench_switches_measures_every_switch(tmp_path):
    report = bench("bench_switches.py", "--rounds", "1", "--size", "tiny", output=tmp_path / "switches.json")
    assert [*report["clock_shares"]] == [*report["bytes"]]
    assert len(report["bytes"]) == 7
    others = {name: held["others"] for name, held in report["bytes"].items()}
    in_every_step = ("rows", "split", "slots")
    assert not any(more for name, more in others.items() if not name.startswith(in_every_step))
    assert report["bytes"]["histogram_every=100"]["sampled"] > 0


def test_the_shares_of_a_switch_are_medians_over_rounds_of_what_it_adds(scripts):
    """Steps of 10 of which the optimizer takes 2; the switch adds 5 to the third, and 1, 2 and 3 in three rounds to the
    others; what is outside of the optimizer phase counts in the sampled step alone.
    """
    from bench_switches import SWITCHES, Step, shares

    name, pace = "histogram_every=100", SWITCHES["histogram_every=100"].pace
    bare = [[Step(10.0, 2.0)] * 4] * 3
    with_it = [[Step(99.0, 2.0 + n)] * 2 + [Step(15.0, 7.0)] + [Step(99.0, 2.0 + n)] for n in (1, 2, 3)]
    found = shares({"none": bare, name: with_it})
    assert found == {
        name: {"sampled": 0.5, "others": 0.2, "on average": pytest.approx((0.5 + 0.2 * (pace - 1)) / pace)}
    }


def test_a_switchs_time_under_load_is_not_shown_and_its_memory_is(scripts, tmp_path):
    from performance_page import page

    figures = {"machine": "a box", "clock_shares": {"slots=True": {"sampled": 0.123, "others": 0.0}}}
    for load, is_shown in ((0.5, True), (4.0, False)):
        report = {**figures, "load": load, "bytes": {"slots=True": {"sampled": 3 << 20}}, "bytes_plain": 5 << 20}
        (tmp_path / "bench_switches_cpu.json").write_text(json.dumps(report))
        assert ("| `slots=True` | 12.3 | 0.0 | 3.0 MiB |" in page(tmp_path)) is is_shown
        assert ("| `slots=True` | 3.0 MiB |" in page(tmp_path)) is not is_shown


@pytest.mark.slow
def test_bench_startup_times_the_command_line(tmp_path):
    report = bench("bench_startup.py", "--rounds", "1", "--only", "help", output=tmp_path / "startup.json")
    assert set(report["seconds"]) == {f"gradwatch {name}--help" for name in ("", "report ", "sync ")}
    assert all(seconds > 0 for seconds in report["seconds"].values())


def test_the_performance_page_is_printed_from_the_measurements(scripts):
    from performance_page import page

    found = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert found == page(), "docs/performance.md is out of date: scripts/bench/performance_page.py prints it"
    assert "(docs/performance.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_shows_what_is_there_and_names_what_has_not_run(scripts, tmp_path):
    from performance_page import page

    assert "bench_store.py" in page(tmp_path).split("## What has not run")[1]
    figures = {"what": "writing", "machine": "a box", "rounds": 3, "seconds": {"close": 0.25}}
    (tmp_path / "bench_store_cpu.json").write_text(json.dumps(figures))
    shown, waiting = page(tmp_path).split("## What has not run")
    assert "| seconds, close | 0.25 |" in shown
    assert "`scripts/bench/bench_store.py` on a box, 3 rounds" in shown
    assert "bench_store.py" not in waiting
    assert "`scripts/bench/gpu` (on a GPU)" in waiting


def test_times_under_load_are_not_shown(scripts, tmp_path):
    from performance_page import page

    def shown(name, load, **figures):
        (tmp_path / name).write_text(json.dumps({"what": "it", "machine": "a box", "load": load, **figures}))
        return page(tmp_path)

    store = {"thread": {"layers": 3}, "runs": [{"bytes": 7, "seconds": 58.4, "close_seconds": 0.2}], "cpu_ms": 9.5}
    assert "| runs 1, seconds | 58.4 |" in shown("bench_store_cpu.json", 0.9, **store)
    text = shown("bench_store_cpu.json", 7.5, **store)
    assert "| runs 1, bytes | 7 |" in text
    assert not any(time in text for time in ("58.4", "0.2 |", "9.5", "| thread"))
    assert "`scripts/bench/bench_store.py` (load 7.5" in text.split("## What other work disturbed")[1]
    ratios = {"ratios": {"mlp": {"torch": 1.0, "ours": 0.81}}}
    assert "0.81" in shown("bench_step_cpu.json", 0.2, **ratios)
    assert "0.81" not in shown("bench_step_cpu.json", 2.0, **ratios)


def test_the_outage_benchs_ratios_are_of_hanging_over_healthy(scripts):
    import bench_outage

    healthy = [(0.001 * i, 0.002 * i) for i in range(1, 101)]
    rounds = [{"healthy": healthy, "hanging": [(2 * clock, 3 * cpu) for clock, cpu in healthy]} for _ in range(3)]
    found = bench_outage.figures(rounds)
    assert (found["clock"]["p99_ratio"], found["clock"]["p50_ratio_of_all"]) == (2.0, 2.0)
    assert found["cpu"]["p99_ratios"] == [3.0, 3.0, 3.0]
    assert found["clock"]["healthy"]["p99_ms"] == pytest.approx(99.01, abs=0.01)
