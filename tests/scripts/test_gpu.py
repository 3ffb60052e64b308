"""`scripts/bench/gpu`: its parts run without a GPU, and whatever happens to one is a line, while the next goes on."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import gpu_run
import pytest
import torch

ROOT = Path(__file__).parents[2]
WORKS = {"parts": {"a": {"held": True, "x": 1}, "b": {"y": 2}}, "error": None, "seconds": 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("section", ["machine", "probes", "gpt2-124m", "small", "drains", "memory"])
def test_every_part_runs_and_holds(section, tmp_path, monkeypatch):
    import gpu_probes
    import gpu_sections

    monkeypatch.setattr(gpu_probes, "folder", tmp_path)
    monkeypatch.setattr(gpu_probes, "NETS", {6: "mlp-6"})
    found = {name: gpu_sections.tried(part) for name, part in gpu_sections.sections(tiny=True)[section].items()}
    assert {name: part for name, part in found.items() if "error" in part or part.get("held") is False} == {}
    assert found
    json.dumps(found)


def test_a_part_that_raises_is_a_line():
    from gpu_sections import tried

    found = tried(lambda: 1 / 0)
    assert found["error"].startswith("ZeroDivisionError: division by zero\nTraceback")
    assert gpu_run.failures({"sections": {"s": {"parts": {"p": found}, "error": None}}, "bars": []}) == [
        "s, p: ZeroDivisionError: division by zero"
    ]


@pytest.mark.slow
def test_a_run_writes_what_it_found_and_needs_neither_mlflow_nor_plotly(tmp_path):
    for name in ("mlflow", "plotly"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # it is no worker
    env = {**own, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [
        ROOT / "scripts" / "bench" / "gpu",
        "--tiny",
        "--only",
        "tests,scenarios",
        "-o",
        tmp_path / "gpu.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert (done.returncode, report["failures"]) == (0, []), done.stdout + done.stderr
    assert list(report["sections"]) == ["tests", "scenarios"]
    ((file, counts),) = report["sections"]["tests"]["parts"].items()
    assert (ROOT / file).exists()
    assert counts["failed tests"] == {}
    assert counts["skipped" if not torch.cuda.is_available() else "passed"] > 0
    assert done.stdout.splitlines()[-1] == "no failures"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_device_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu_run.main() == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--tiny"]])
def test_without_torch_it_says_so_in_one_line(options, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    monkeypatch.setattr(sys, "argv", ["gpu", *options])
    assert gpu_run.main() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"{sys.executable} has no torch: name one that has in $PYTHON\n"


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )

    class Impatient(subprocess.Popen):
        def wait(self, timeout=None):
            while timeout is not None:  # until the child is there, which takes a busy machine as long as it takes
                if (tmp_path / "log").read_text().endswith("\n"):
                    raise subprocess.TimeoutExpired("it", timeout)
                time.sleep(0.01)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Impatient)
    error = gpu_run.run_process([sys.executable, "-c", code], 9, tmp_path)
    first, pid = error.split(": ")
    assert first == "it was not done after 9 s"
    stat = Path(f"/proc/{int(pid)}/stat")
    until = time.monotonic() + 30
    while stat.exists() and ") Z " not in stat.read_text():  # nobody may have asked for its end yet
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_that_fails_says_why(tmp_path):
    assert gpu_run.run_process([sys.executable, "-c", "pass"], 20, tmp_path) is None
    assert (
        gpu_run.run_process([sys.executable, "-c", "raise SystemExit('no')"], 20, tmp_path) == "it ended with 1: no\n"
    )


def test_the_parts_of_a_section_that_was_ended_are_kept(tmp_path, monkeypatch):
    def ended(command, limit, folder, **env):
        (folder / "parts.jsonl").write_text('{"a": {"x": 1}}\n{"b": {"y"')
        return "it was not done after 9 s: "

    monkeypatch.setattr(gpu_run, "run_process", ended)
    found = gpu_run.run_section("probes", 9, tiny=True)
    assert (found["parts"], found["error"]) == ({"a": {"x": 1}}, "it was not done after 9 s: ")
    assert gpu_run.failures({"sections": {"probes": found}, "bars": []}) == ["probes: it was not done after 9 s: "]


def test_a_section_for_which_no_time_is_left_is_a_failure():
    found = gpu_run.run_section("memory", 1, tiny=True)
    assert gpu_run.failures({"sections": {"memory": found}, "bars": []}) == ["memory: no time was left for it"]


def test_a_part_that_does_not_hold_and_a_test_that_fails_are_failures():
    wrong = {"parts": {"a": {"held": False}, "f.py": {"failed tests": {"f.py::t": "assert 1 == 2"}}}, "error": None}
    assert gpu_run.failures({"sections": {"ok": WORKS, "s": wrong}, "bars": []}) == [
        "s, a: not as it should be", "f.py::t: assert 1 == 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("phase", "whole", "held"), [(0.9, 1.004, [True, True]), (0.93, 1.004, [False, True]), (0.9, 1.01, [True, False])]
)
def test_the_bars_are_of_the_whole_model_and_of_enough_tokens(phase, whole, held):
    figures = {"parameters": 124e6, "phase": {gpu_run.OURS: phase}, "to bare": {gpu_run.RECORDING: whole}}
    tiny = {**figures, "parameters": 1e4, "batch": [20, 1024], "phase": {gpu_run.OURS: 2}}
    parts = {"few": {**figures, "batch": [4, 1024], "to bare": {}}, "tiny": tiny, "failed": {"error": "no memory"}}
    found = gpu_run.bars({"gpt2-124m": {"parts": parts}})
    assert [bar["held"] for bar in found] == held[:1]
    found = gpu_run.bars({"gpt2-124m": {"parts": {"many": {**figures, "batch": [20, 1024]}}}})
    assert [bar["held"] for bar in found] == held
    missed = gpu_run.failures({"sections": {}, "bars": found})
    assert len(missed) == held.count(False)


def test_the_files_with_tests_for_a_gpu_are_found():
    names = [path.name for path in gpu_run.gpu_tests()]
    assert {"test_devices.py", "test_cuda_rules.py", "test_fused.py", "test_hooks.py", "test_truth.py"} < {*names}
