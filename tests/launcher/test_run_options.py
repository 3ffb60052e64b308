"""Options of `gradwatch run`, its configuration files, `gradwatch.log`, and its runs in MLflow and on two ranks."""

import io
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from in_the_wild import SCRIPTS, SUPPORT, environment, one
from training import mlp, train, watch

import gradwatch
from gradwatch import GradwatchWarning, RunError
from gradwatch.analysis.rules import verdict
from gradwatch.cli import Handover, main
from gradwatch.cli.config import find_config
from gradwatch.launcher.stdout import Tee, parse_pattern
from gradwatch.recording import open_watches
from gradwatch.recording.courier_process import wait_delivered
from gradwatch.storage.shared_folder import run_folders


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """`gradwatch run` with these words in this folder, in a fork of one process that has imported torch."""
    out = tmp_path_factory.mktemp("warm")
    start = [sys.executable, SUPPORT / "wild.py", "gradwatch", out]
    with subprocess.Popen(
        start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:

        def call(place, *words):
            print(json.dumps([[str(w) for w in words], str(place), environment()]), file=process.stdin, flush=True)
            folder = out / process.stdout.readline().strip()
            code, *said = ((folder / name).read_text() for name in ("code", "stdout", "stderr"))
            return subprocess.CompletedProcess(words, int(code), *said)

        yield call


# ---------------------------------------------------------------------------------------------------- what is logged


def test_log_is_nothing_without_a_watch_and_reaches_all_that_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(open_watches, "watches", [])  # another test may have left one open
    gradwatch.log(accuracy=0.5)
    models = [mlp(), mlp(seed=1)]
    optimizers = [gradwatch_sgd(m) for m in models]
    first = watch(models[0], optimizers[0], tmp_path, name="A")
    second = watch(models[1], optimizers[1], tmp_path, name="B", run=first)
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, steps=3, after_step=lambda *_: gradwatch.log(accuracy=0.25))
    first.close()
    gradwatch.log(accuracy=0.75)
    with pytest.warns(GradwatchWarning, match="training goes on: accuracy='high'; wanted a number"):
        gradwatch.log(accuracy="high")
    second.close()
    assert not open_watches.watches
    assert list(gradwatch.open_history(first.dir).total("accuracy")) == [0.25, 0.25, 0.25]
    assert list(gradwatch.open_history(second.dir).total("accuracy")) == [0.25, 0.25, 0.75]


def gradwatch_sgd(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_numbers_are_found_in_complete_lines_and_the_output_is_unchanged(monkeypatch):
    found, out = [], io.StringIO()
    monkeypatch.setattr(open_watches, "log", lambda **values: found.append(values))
    tee = Tee(out, [parse_pattern("acc=acc: ([0-9.,]+)%?"), parse_pattern("loss=loss=(\\S+)"), ("all", r"^\d+$")])
    for text in ("epoch 1 acc: 9", "8.5% loss=1e-3\nloss=", "nan\r", "loss=high\n17\n", "acc: 1,000"):
        assert tee.write(text) == len(text)
    assert out.getvalue() == "epoch 1 acc: 98.5% loss=1e-3\nloss=nan\rloss=high\n17\nacc: 1,000"
    assert found[:2] == [{"acc": 98.5}, {"loss": 0.001}]
    assert np.isnan(found[2]["loss"])
    assert found[3:] == [{"all": 17.0}]
    tee.flush()
    tee.write("\n")
    assert found[-1] == {"acc": 1000.0}


@pytest.mark.slow
def test_a_number_in_the_output_belongs_to_the_last_step(run, tmp_path):
    done = run(tmp_path, "--log", "none", "--metric-regex", "accuracy=acc ([0-9.]+)", "--param", "seed=0",
               SCRIPTS / "argparse_script.py", "--steps", "12")  # fmt: skip
    printed = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    history = one(tmp_path)
    np.testing.assert_allclose(history.total("accuracy"), printed)
    assert history.run.params["seed"] == "0"


@pytest.mark.slow
def test_a_script_that_watches_itself_is_not_watched_twice(run, tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch, gradwatch\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), lr=1e-5)\n"
        "with gradwatch.watch(m, o, log=None, run_name='own', verbose=False):\n"
        "    for _ in range(5):\n        o.zero_grad(); m(torch.ones(1, 2)).sum().backward(); o.step()\n"
    )
    done = run(tmp_path, "--log", "none", "--clip", "ClipByGlobalNorm(1.0)", "own.py")
    assert one(tmp_path).run.name == "own"
    assert done.stderr == (
        "gradwatch: the script watches its optimizer itself; --clip ClipByGlobalNorm(1.0) does not reach it\n"
    )


ATTENDS = """
import torch
torch.manual_seed(0)
m = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
o = torch.optim.SGD(m.parameters(), lr=0.0)
for step in range(3):
    o.zero_grad()
    m(torch.ones(2, 3, 8)).square().mean().backward()
    o.step()
"""


@pytest.mark.slow
def test_attention_is_clipped_in_a_script_as_it_is(run, tmp_path):
    """From the second step on: the first forward pass is over when the optimizer is seen."""
    (tmp_path / "attends.py").write_text(ATTENDS)
    done = run(tmp_path, "--log", "none", "--every", "1", "--renorm", "QKClip(1e-3)", "attends.py")
    assert done.returncode == 0, done.stderr
    history = one(tmp_path)
    assert history.run.renorm == "QKClip(0.001)"
    rates = history.layer("renorm_rate")[:, history.layers.index("self_attn.in_proj_weight")]
    assert rates[0] == 0
    assert rates[1] > 0


EXPLODES = """
import time
import torch
m = torch.nn.Linear(4, 1)
o = torch.optim.SGD(m.parameters(), lr=5.0)
for step in range(3000):
    o.zero_grad()
    m(torch.randn(8, 4)).square().mean().backward()
    o.step()
    time.sleep(0.01)
print("to the end")
"""


@pytest.mark.slow
def test_a_run_in_a_bad_way_is_halted(run, tmp_path):
    (tmp_path / "explodes.py").write_text(EXPLODES)
    done = run(tmp_path, "--log", "none", "--halt-on", "error", "explodes.py")
    assert done.returncode == 1
    assert not done.stdout
    (line,) = [line for line in done.stderr.splitlines() if "halted" in line]
    history = one(tmp_path)
    assert len(history) < 3000
    assert history.run.status == "FAILED"
    assert "Traceback" not in done.stderr
    assert line.startswith("gradwatch: halted: nonfinite at step ")
    assert done.stderr.count("nonfinite at step ") == 1, "it is said once"
    last = f"gradwatch: verdict: {verdict(history)}; more: gradwatch show "
    assert done.stderr.splitlines()[-1].startswith(last)


# ---------------------------------------------------------------------------------------------------- configuration


def shown(*words):
    return CliRunner().invoke(main, ["run", "--show-config", *words])


def test_the_command_line_wins_over_the_file_and_the_nearest_file_counts(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.gradwatch]\nclip = "AGC(0.01)"\nscript-clip = "replace"\nevery = 5\n'
    )
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@host")
    lines = shown("--clip", "none", "--metric-regex", "a=b").output.splitlines()
    file = tmp_path / "pyproject.toml"
    assert "clip = 'none'  # command line" in lines
    assert f"script_clip = 'replace'  # {file}" in lines
    assert f"every = 5  # {file}" in lines
    assert "log = 'mlflow'  # default" in lines
    assert "metric_regex = ['a=b']  # command line" in lines
    assert "MLFLOW_TRACKING_URI = 'https://host'  # environment" in lines
    (tmp_path / "below/gradwatch.toml").write_text("slots = true\n")
    lines = shown().output.splitlines()
    assert f"slots = True  # {tmp_path}/below/gradwatch.toml" in lines
    assert "every = 10  # default" in lines


def test_a_value_cannot_be_better_both_ways(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')")
    words = ["run", "--higher-is-better", "elo", "--lower-is-better", "elo", str(tmp_path / "script.py")]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "Error: --higher-is-better and --lower-is-better both name elo: wanted one of them\n"


def test_a_folder_that_cannot_be_made_is_named_before_the_script_runs(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "script.py").write_text("print('ran')")
    words = ["run", "--dir", str(tmp_path / "file" / "runs"), str(tmp_path / "script.py")]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stdout) == (2, "")
    wanted = f"{tmp_path / 'file'} is no folder; wanted a folder for the run, which may be new"
    assert done.stderr == f"Error: --dir {tmp_path / 'file' / 'runs'}: {wanted}\n"


@pytest.mark.parametrize(
    ("words", "text", "wanted"),
    [((), "", 5.0), ((), "flush-every = 2", 2.0), (("--flush-every", "0.5"), "flush-every = 2", 0.5)],
)
def test_flush_every_reaches_the_watch(tmp_path, monkeypatch, words, text, wanted):
    (tmp_path / "gradwatch.toml").write_text(text)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    command = main.get_command(click.Context(main), "run")
    with pytest.raises(Handover) as handed:
        command.main([*words, "train.py"], standalone_mode=False)
    program, args, plan = handed.value.then.args
    assert plan.watch["flush_every"] == wanted
    assert f"flush_every = {wanted}" in shown(*words).output
    assert shown("--flush-every", "0").exit_code == 2


@pytest.mark.parametrize(
    ("words", "text", "wanted"),
    [
        ((), "", ["mlflow"]),
        (("--log", "none"), 'log = "tensorboard"', None),
        ((), 'log = "mlflow, tensorboard"', ["mlflow", "tensorboard"]),
    ],
)
def test_log_reaches_the_watch(tmp_path, monkeypatch, words, text, wanted):
    pytest.importorskip("tensorboard")
    (tmp_path / "gradwatch.toml").write_text(text)
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Handover) as handed:
        main.get_command(click.Context(main), "run").main([*words, "train.py"], standalone_mode=False)
    _, _, plan = handed.value.then.args
    assert plan.watch["log"] == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('log = "wandb"', "log = 'wandb': 'wandb': wanted mlflow, tensorboard, both with a comma, or none"),
        ("evry = 5", "there is no setting evry; known: activations, activations-every, "),
        ("clip = 3", "clip = 3: '3' is not a policy"),
        ('clip = "ClipByGlobalNorm(1.0"', "gradwatch.toml: clip = 'ClipByGlobalNorm(1.0': "),
        ('renorm = "AGC(0.01)"', "gradwatch.toml: renorm = 'AGC(0.01)': "),
        ('param = ["seed"]', "gradwatch.toml: param = ['seed']: --param 'seed': wanted KEY=VALUE"),
        ('metric-regex = ["accuracy"]', "gradwatch.toml: metric_regex = ['accuracy']: "),
        ("param = {seed = 1}", "param = a dict: wanted a list of texts"),
        ("script-clip = 'keep'\nscript_clip = 'replace'", "script-clip is set twice, with - and with _"),
        ("higher-is-better = ['a']\nlower-is-better = ['a']", "both name a"),
        ("every = 0", "every = 0: 0 is not in the range"),
        ("every = 1.5", "every = 1.5: '1.5' is not a valid"),
        ("every = true", "every = True: 'True' is not a valid"),
        ("every = inf", "every = inf: 'inf' is not a valid"),
        ("every = 1979-05-27", "every = a date: wanted a text, a number, true or false"),
        ("[every]\nx = 1", "every = a dict: wanted a text"),
        ("every = 0x" + "f" * 100_000, "every = a huge number: wanted a text"),
        ("tag = [[1]]", "tag = a list: wanted a text"),
        ("dir = '\\u0000'".replace("'", '"'), "wanted a text, a number"),
        ("slots = 'perhaps'", "slots = 'perhaps': "),
        ("a" + ".a" * 100_000 + " = 1", "nested too deeply"),
        ("[" + "a." * 50_000 + "a]", "nested too deeply"),
        ("every = ", "cannot be read"),
        ("metric-regex = 'a=b'", "wanted a list"),
        ("clip = ['AGC(0.01)']", "wanted one value"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradwatch.toml").write_text(text)
    result = shown()
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert message in line


def in_the_place_of(path, what):
    if what == "a folder":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a huge file":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    else:
        path.symlink_to({"a device": "/dev/zero", "a link to nowhere": "nowhere", "a link to itself": path}[what])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and links")
@pytest.mark.parametrize("file", ["gradwatch.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    "what", ["a folder", "a pipe", "a device", "a link to nowhere", "a link to itself", "a huge file"]
)
def test_what_is_no_settings_file_is_neither_read_nor_passed_over(tmp_path, monkeypatch, file, what):
    monkeypatch.chdir(tmp_path)
    in_the_place_of(tmp_path / file, what)
    result = shown()
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert f"{file} cannot be read: " in line
    assert CliRunner().invoke(main, ["run", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("file", "text"),
    [("gradwatch.toml", "every = "), ("pyproject.toml", "\xff"), ("pyproject.toml", "[tool]\ngradwatch = 5")],
)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_a_broken_file_leaves_the_help_alone(tmp_path, monkeypatch, command, text, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    helped = CliRunner().invoke(main, [command, "--help"])
    assert helped.exit_code == 0
    assert "Usage: " in helped.output
    started = CliRunner().invoke(main, [command, "script.py"])
    assert started.exit_code == 2
    (line,) = started.stderr.splitlines()
    assert file in line


def test_a_command_has_a_table_of_its_own(tmp_path):
    (tmp_path / "gradwatch.toml").write_text("every = 5\nslots = true\n[sweep]\nevery = 7\njobs = 2\n")
    config = find_config(tmp_path)
    assert config.settings("run", ["every", "slots"]) == {"every": 5, "slots": True}
    assert config.settings("sweep", ["every", "jobs"]) == {"every": 7, "jobs": 2}
    with pytest.raises(RunError, match=r"no setting sweep\.jobs"):
        config.settings("sweep", ["every"])


# ------------------------------------------------------------------------------------------------------------- MLflow


def settled(store, folder):
    """The runs of each experiment that has any, once all have ended: couriers work on after a short script's end."""
    mlflow = pytest.importorskip("mlflow")
    assert all(wait_delivered(run, 120)["done"] for run in run_folders(folder / "gradwatch-runs"))
    client = mlflow.MlflowClient(store)
    deadline = time.monotonic() + 60
    while True:
        runs = {e.name: client.search_runs([e.experiment_id]) for e in client.search_experiments()}
        over = all(run.info.status != "RUNNING" for found in runs.values() for run in found)
        if over or time.monotonic() > deadline:
            return {name: found for name, found in runs.items() if found}
        time.sleep(0.5)


OWN = """
import os, sys
import mlflow
assert "MLFLOW_RUN_ID" in os.environ
{first}
import torch
m = torch.nn.Linear(2, 1)
o = torch.optim.SGD(m.parameters(), lr=0.1)
with mlflow.start_run(run_name="mine"):
    mlflow.log_param("p", 1)
    for _ in range(5):
        o.zero_grad(); m(torch.ones(1, 2)).sum().backward(); o.step()
    mlflow.log_metric("accuracy", 0.5)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "experiment", "name"),
    [("", "given", "mine"), ("mlflow.set_experiment('own')", "own", "mine"), (None, "given", "script")],
)
def test_there_is_one_mlflow_run_and_it_holds_all(run, store, tmp_path, first, experiment, name):
    script = tmp_path / "script.py"
    plain = OWN.replace("{first}\n", "").split("import torch")[1]
    plain = (
        "import torch" + plain.split("with")[0] + "for _ in range(5):" + plain.split("range(5):")[1].split("    ml")[0]
    )
    script.write_text(plain if first is None else OWN.replace("{first}", first))
    done = run(tmp_path, "--experiment", "given", script)
    assert done.returncode == 0, done.stderr
    found = settled(store, tmp_path)
    assert list(found) == [experiment]
    (only,) = found[experiment]
    assert (only.info.run_name, only.info.status) == (name, "FINISHED")
    assert {"grad_norm/total", "loss"} <= set(only.data.metrics)
    assert only.data.tags["mlflow.source.name"] == str(script)
    if first is not None:
        assert only.data.params["p"] == "1"
        assert only.data.metrics["accuracy"] == 0.5


@pytest.mark.slow
def test_a_crash_is_a_failed_run_and_a_script_without_training_leaves_none(run, store, tmp_path):
    assert run(tmp_path, "--experiment", "given", SCRIPTS / "crashes.py").returncode == 1
    (failed,) = settled(store, tmp_path)["given"]
    assert failed.info.status == "FAILED"
    (tmp_path / "empty.py").write_text("print(1)")
    assert run(tmp_path, "--experiment", "given", "empty.py").stdout == "1\n"
    assert len(settled(store, tmp_path)["given"]) == 1


# ------------------------------------------------------------------------------------------------------- several ranks


DDP = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(model.module.weight.grad.norm().item())
dist.destroy_process_group()
"""


def documented(tmp_path, launcher, *own):
    """Run the line of docs/run.md that begins with this launcher, with options of the launcher's `own` for the test."""
    text = (Path(__file__).parents[2] / "docs/run.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(f"$ {launcher} ")]
    words = shlex.split(line)
    return subprocess.run([sys.executable, *own, *words[words.index("-m") :]], cwd=tmp_path, capture_output=True,
                          text=True, env=environment(), timeout=120, check=False)  # fmt: skip


ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(6):
    optimizer.zero_grad()
    accelerator.backward(model(torch.randn(8, 4)).square().mean())
    optimizer.step()
    print(model.weight.grad.norm().item())
"""


@pytest.mark.slow
def test_under_accelerate(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(ACCELERATED)
    plain = ("--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no")
    done = documented(tmp_path, "accelerate", "-m", "accelerate.commands.launch", "--cpu", *plain)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(one(tmp_path).layer("grad_norm")[:, 0], np.array(done.stdout.split(), float), rtol=1e-5)


COMMAND_LINES = {
    "hydra": """
import hydra
@hydra.main(version_base=None, config_path=None)
def main(settings):
    train(settings.lr)
main()
""",
    "fire": """
import fire
fire.Fire(lambda lr: train(lr))
""",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "words"), [("hydra", ["+lr=0.25", "hydra.run.dir=out"]), ("fire", ["--lr", "0.25"])]
)
def test_scripts_that_leave_their_command_line_to_a_library(run, tmp_path, library, words):
    pytest.importorskip(library)
    (tmp_path / "script.py").write_text(
        "import torch\ndef train(lr):\n    model = torch.nn.Linear(2, 1)\n"
        "    torch.nn.init.constant_(model.weight, 10.0)  # usual steps: Hydra prints what is found\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n    for _ in range(4):\n"
        "        optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward(); optimizer.step()\n"
        "    print('trained')\n" + COMMAND_LINES[library]
    )
    done = run(tmp_path, "--log", "none", "script.py", *words)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert list(one(tmp_path).total("lr")) == [0.25] * 4
    assert "0.25" in {one(tmp_path).run.params.get(key) for key in ("args.lr", "args.0")}


def test_the_scripts_own_arguments_are_params_of_its_run(run, tmp_path):
    words = ["--param", "args.steps=mine", SCRIPTS / "argparse_script.py", "--steps", "3"]
    done = run(tmp_path, "--log", "none", *words)
    assert done.returncode == 0, done.stderr
    params = one(tmp_path).run.params
    found = {key: value for key, value in params.items() if key.startswith("arg")}
    assert found == {"argv": "--steps 3", "args.lr": "0.1", "args.steps": "mine"}


@pytest.mark.slow  # a process that imports torch
def test_a_process_that_the_script_spawns_knows_the_arguments(run, tmp_path):
    named = ("--run-name", "two words", "--clip", "ClipByGlobalNorm(1.0)")  # folders are named otherwise
    done = run(tmp_path, "--log", "none", *named, SCRIPTS / "spawns.py", "--note", "here")
    assert done.returncode == 0, done.stderr
    assert "nothing was recorded" not in done.stderr
    found = [gradwatch.open_history(path).run for path in run_folders(tmp_path / "gradwatch-runs")]
    assert [run.params["args.note"] for run in found] == ["here"] * len(found)
    assert [run.command["args"] for run in found] == [["--note", "here"]] * len(found)
    assert found


@pytest.mark.slow
def test_under_torchrun_one_rank_writes_what_all_have(tmp_path):
    (tmp_path / "train.py").write_text(DDP)
    done = documented(tmp_path, "torchrun", "-m", "torch.distributed.run", "--nproc-per-node", "2",
                      "--master-port", str(20000 + os.getpid() % 20000))  # fmt: skip
    assert done.returncode == 0, done.stderr
    history = one(tmp_path)
    assert history.layers == ("weight", "bias")
    np.testing.assert_allclose(history.layer("clipped_norm")[:, 0], np.array(done.stdout.split(), float), rtol=1e-5)
    assert done.stderr.count("gradwatch: watching") == 1


def test_a_run_that_is_trained_again_records_activations_as_it_did(tmp_path, monkeypatch):
    from gradwatch.cli.run import _command
    from gradwatch.cli.run import run as command

    monkeypatch.chdir(tmp_path)
    given = command.make_context("run", ["--activations", "--activations-of", "*.attn", "train.py"]).params
    words = _command("train.py", False, given)["options"]
    assert words[0] == "--activations"
    assert words[words.index("--activations-of") + 1] == "*.attn"
