"""`gradwatch import`: what other tools logged is judged as what gradwatch recorded, as far as it goes."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from make_run import make_history, make_run
from test_export import exported, read_events

from gradwatch.analysis.rules import diagnose, has_no_findings, verdict
from gradwatch.cli import main
from gradwatch.open_run import open_history
from gradwatch.report import build_report, render_html

LAYERS, GRADIENTS = "layers were not recorded", "gradients were not recorded"


def call(*words):
    return CliRunner().invoke(main, [*map(str, words)])


def imported(file, tmp_path, *options):
    directory = tmp_path / "imported"
    known = {*directory.glob("*")}
    result = call("import", file, "--dir", directory, *options)
    assert result.exit_code == 0, result.output
    (folder,) = {*directory.glob("*")} - known
    return open_history(folder), result.stderr


def trainer_state(tmp_path, entries, **fields):
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"max_steps": 1000, "log_history": entries, **fields}))
    return path


def entries(count, every=10, **columns):
    """What the Trainer logs: a loss that falls, and columns that are functions of the step."""
    steps = range(every, (count + 1) * every, every)
    return [
        {"loss": 3 * math.exp(-s / 400) + 0.02 * math.sin(s), "grad_norm": 1 + 0.1 * math.sin(s), "learning_rate": 1e-4,
         "epoch": s / 100, "step": s, **{name: value(s) for name, value in columns.items()}}
        for s in steps
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ readers


def test_a_trainer_state_has_its_names_and_its_steps(tmp_path):
    rows = [*entries(50), {"eval_loss": 0.5, "eval_accuracy": 0.9, "eval_runtime": 1.5, "step": 500, "epoch": 5.0},
            {"train_runtime": 9.0, "train_loss": 1.0, "total_flos": 1e15, "step": 500, "epoch": 5.0}]  # fmt: skip
    history, _ = imported(trainer_state(tmp_path, rows, num_train_epochs=5, train_batch_size=8), tmp_path)
    np.testing.assert_array_equal(history.step, np.arange(10, 501, 10))
    for name, theirs in {"grad_norm": "grad_norm", "lr": "learning_rate", "loss": "loss"}.items():
        np.testing.assert_array_equal(history.total(name), [row[theirs] for row in rows[:50]])
    assert history.total("eval_accuracy")[-1] == 0.9
    assert {*history.logged} == {"epoch", "loss", "eval_loss", "eval_accuracy"}
    assert history.run.params == {"num_train_epochs": "5", "train_batch_size": "8"}
    assert (history.run.total_steps, history.run.status, history.problems) == (1000, "FINISHED", ())


SPARSE = """epoch,lr-AdamW,step,train_loss_step,val_loss
0,0.001,49,,
0,,49,2.5,
0,,49,,2.25
1,0.0005,99,,
1,,99,nan,
1,,99,,inf
"""


def test_the_sparse_rows_of_lightning_are_one_a_step(tmp_path):
    (tmp_path / "version_0").mkdir()
    (tmp_path / "version_0" / "metrics.csv").write_text(SPARSE)
    history, said = imported(tmp_path / "version_0", tmp_path)
    assert (history.run.name, said) == ("version_0", "")
    np.testing.assert_array_equal(history.step, [49, 99])
    np.testing.assert_array_equal(history.total("lr"), [0.001, 0.0005])
    np.testing.assert_array_equal(history.total("train_loss_step"), [2.5, np.nan])
    np.testing.assert_array_equal(history.total("val_loss"), [2.25, np.inf])
    np.testing.assert_array_equal(history.total("nonfinite"), [0, 1])


@pytest.mark.parametrize(
    ("text", "step", "found"),
    [
        ("Step;loss\n0;1.5\n1;0.5\n", [0, 1], {"loss": [1.5, 0.5]}),
        ("loss\n1.5\n0.5\n", [0, 1], {"loss": [1.5, 0.5]}),
        ("_step,_timestamp,train/grad_norm,who\n3,1.7e9,2.0,me\n5.0,1.7e9,,you\nx,1,1,1\n", [3], {"grad_norm": [2.0]}),
        ("Wall time,Step,Value\n1700000000.5,7,0.25\n", [7], {"Value": [0.25], "time": [1700000000.5]}),
        (
            "step,skipped,attempt,lr/x\n0,1,2,3\n",
            [0],
            {"logged/skipped": [1], "logged/attempt": [2], "logged/lr/x": [3]},
        ),
        ('\ufeffstep,"a,b"\n0,1\n', [0], {"a,b": [1]}),
        ("step;loss;lr\n0;1,25;-1,5e-3\n1;0.5;2\n", [0, 1], {"loss": [1.25, 0.5], "lr": [-1.5e-3, 2]}),
        ("Step,a - loss,a - loss__MIN,a - loss__MAX,b__MIN\n0,1,2,3,4\n", [0], {"a - loss": [1], "b__MIN": [4]}),
    ],
)
def test_tables_of_other_tools(text, step, found, tmp_path):
    (tmp_path / "log.csv").write_text(text)
    history, _ = imported(tmp_path / "log.csv", tmp_path)
    np.testing.assert_array_equal(history.step, step)
    for name, values in found.items():
        np.testing.assert_array_equal(history.total(name), values, err_msg=name)
    assert {*history.per_step} - {"time"} == {*found} - {"time"}


def test_what_is_left_out_is_said(tmp_path):
    (tmp_path / "log.csv").write_text("loss,who,grad_norm/fc.weight\n1,me,3\n2,you,4\n")
    _, said = imported(tmp_path / "log.csv", tmp_path)
    assert said.splitlines() == [
        "note: there is no column of steps (step, global_step, _step, ...): rows are counted from 0",
        "note: columns with text are left out: who",
        "note: 1 scalars of layers and clips are left out, such as grad_norm/fc.weight",
    ]


def test_of_columns_of_one_name_the_last_counts_and_it_is_said(tmp_path):
    (tmp_path / "log.csv").write_text("step,loss,acc,loss\n0,1,.5,2\n1,3,.5,4\n")
    history, said = imported(tmp_path / "log.csv", tmp_path)
    np.testing.assert_array_equal(history.total("loss"), [2, 4])
    assert said == "note: several columns are called loss: the last of them counts\n"


def test_thousands_of_columns_are_a_line(tmp_path):
    names = [f"value{i}" for i in range(4_000)]
    (tmp_path / "log.csv").write_text(f"step,{','.join(names)}\n0{',1' * 4_000}\n")
    result = call("import", tmp_path / "log.csv", "--dir", tmp_path / "imported")
    assert "log: 1 logged steps of value0, value1, " in result.stdout
    assert "value19 and 3,980 more" in result.stdout
    assert len(result.stdout) < 1_000


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_of_an_event_file_that_is_damaged_it_is_said_how_much_was_not_read(damage, tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(tmp_path / "log")
    for step in range(20):
        writer.add_scalar("loss", 1.0, step)
    writer.close()
    assert imported(tmp_path / "log", tmp_path)[1] == ""
    (path,) = (tmp_path / "log").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-5] if damage == "cut" else data[:-5] + b"x" + data[-4:])
    history, said = imported(tmp_path / "log", tmp_path / damage)
    assert len(history) == 19
    last = (len(data) - data.rindex(b"loss")) + 40  # the last record begins not far before its name
    (lost,) = [int(word) for word in said.split() if word.isdigit()]
    assert 5 < lost < last
    assert said.endswith(f"bytes of {path.name} are cut off or damaged, and left out\n")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{}", "is no trainer_state.json"),
        ("a.json", '{"log_history": [{"loss": 1}]}', "is no trainer_state.json"),
        ("a.json", '{"log_history": [{"step": Infinity, "loss": 1}]}', "is no trainer_state.json"),
        ("a.json", '{"log_history": []}', "holds no scalar"),
        ("a.json", "[" * 100_000, "is no trainer_state.json"),
        ("a.json", '{"log_history": [{"step": -1, "loss": 1}]}', "step -1 of loss is none"),
        ("a.csv", "", "holds no scalar"),
        ("a.csv", "step,loss\n", "holds no scalar"),
        ("a.csv", "step,loss\n0.5,1\n", "holds no scalar of any step; 1 rows without a step, a whole number, are"),
        ("a.csv", "step,Layer,grad_norm\n0,a,1\n0,b,2\n", "has a row for each layer: wanted one for each step"),
        ("a.csv", "\xff\xfe\x00", "is no CSV file"),
        ("a.csv", "step,loss\n1e300,1\n", "is none: wanted a number"),
        ("a.txt", "", "is nothing that can be imported"),
        ("events.out.tfevents.1", "nonsense", "is no event file"),
        ("events.out.tfevents.1", "", "is no event file"),
    ],
)
def test_what_is_no_log_is_one_line(name, text, said, tmp_path):
    if "events" in name:
        pytest.importorskip("tensorboard")
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    result = call("import", tmp_path / name, "--dir", tmp_path / "imported")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "imported").exists()


def test_of_several_logs_in_a_folder_it_is_said_which_was_read(tmp_path):
    (tmp_path / "steps.csv").write_text("step,loss\n0,1\n")
    (tmp_path / "metrics.csv").write_text("step,loss\n0,2\n")
    history, said = imported(tmp_path, tmp_path / "out")
    assert history.total("loss") == [1]
    assert said == "note: steps.csv was read; what lies beside it was not: metrics.csv\n"


def test_no_file_is_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "nope.csv"):
        result = call("import", path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


# --------------------------------------------------------------------------------------------------------- round trips


def test_the_steps_of_an_exported_run_come_back_to_the_bit(tmp_path):
    run = make_run(tmp_path / "runs", nan_at=50, logged=("loss", "val_accuracy", "=SUM(A1)"))
    history, _ = imported(exported(run, "csv", tmp_path / "out") / "steps.csv", tmp_path)
    before = open_history(run)
    assert history.per_step.keys() == before.per_step.keys()
    for name, values in before.per_step.items():
        np.testing.assert_array_equal(history.total(name), values, err_msg=name)
    np.testing.assert_array_equal(history.step, before.step)
    assert verdict(history) == "nonfinite at step 50"


def test_the_curves_of_an_event_file_come_back(tmp_path):
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path / "runs")
    folder = exported(run, "tensorboard", tmp_path / "out")
    (history, said), before = imported(folder, tmp_path), open_history(run)
    for name in ("grad_norm", "clipped_norm", "clip_coef", "clip_rate", "lr", "loss", "val_accuracy"):
        np.testing.assert_array_equal(history.total(name), before.total(name).astype(np.float32), err_msg=name)
    np.testing.assert_allclose(history.total("time"), before.total("time"), atol=1e-3, rtol=0)  # MLflow's milliseconds
    assert "39 scalars of layers and clips are left out" in said  # what the overview repeats among them
    again = exported(next((tmp_path / "imported").iterdir()), "tensorboard", tmp_path / "again")
    first = {key: [value for _, value, _ in points] for key, points in read_events(folder).items()}
    for key, points in read_events(again).items():
        if not key.startswith(("clip/rate_", "clip/nonfinite")):
            assert [value for _, value, _ in points] == first[key], key


def test_a_run_without_times_can_be_exported_all_the_same(tmp_path):
    pytest.importorskip("tensorboard")
    imported(trainer_state(tmp_path, entries(50)), tmp_path)
    found = read_events(exported(next((tmp_path / "imported").iterdir()), "tensorboard", tmp_path / "out"))
    assert [step for step, *_ in found["loss"]] == [*range(10, 501, 10)]


@pytest.mark.slow
def test_event_files_of_torch_are_read(tmp_path):
    """NaN and inf too, a restart, and what is no scalar."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    values = [3.0, 2.0, float("nan"), float("inf"), 0.5]
    for start in (0, 3):  # the second goes on from step 3
        writer = SummaryWriter(tmp_path / "log")
        for step in range(start, 5):
            writer.add_scalar("train/loss", values[step] + 0.25 * (start == 0), step)
        writer.add_text("note", "x")
        writer.add_scalar("new", 1.5, 4, new_style=True)
        writer.close()
    history, said = imported(tmp_path / "log", tmp_path)
    np.testing.assert_array_equal(history.total("train/loss"), [3.25, 2.25, np.nan, np.inf, 0.5])
    np.testing.assert_array_equal(history.total("nonfinite"), [0, 0, 1, 1, 0])
    assert history.total("new")[-1] == 1.5
    assert "1 tags that are no scalars are left out, such as note" in said


# ------------------------------------------------------------------------------------------------------------ judgement


def test_a_healthy_log_is_healthy_as_far_as_it_goes(tmp_path):
    history, _ = imported(trainer_state(tmp_path, entries(100)), tmp_path)
    assert (diagnose(history), has_no_findings(verdict(history))) == ([], True)
    assert verdict(history).endswith(LAYERS)
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(f"{s},{3 * math.exp(-s / 40)}\n" for s in range(100)))
    history, _ = imported(tmp_path / "log.csv", tmp_path)
    assert verdict(history).endswith(GRADIENTS)


@pytest.mark.parametrize("column", ["grad_norm", "loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_log_that_ends_in_nan_or_inf_fails_the_check(column, value, tmp_path):
    rows = entries(60, **{column: lambda step: value if step > 400 else 1 + 0.1 * math.sin(step)})
    history, _ = imported(trainer_state(tmp_path, rows), tmp_path)
    (finding,) = diagnose(history)
    assert (finding.rule, finding.severity, finding.first_step) == ("nonfinite", "error", 410)
    assert "the log does not tell" in finding.cause
    result = call("check", next((tmp_path / "imported").iterdir()))
    assert (result.exit_code, result.stderr) == (1, "")


def test_a_loss_that_goes_nowhere_is_found(tmp_path):
    rows = entries(120, loss=lambda step: 2.3 + 0.01 * math.sin(step * step))
    history, _ = imported(trainer_state(tmp_path, rows), tmp_path)
    assert "no-progress" in {finding.rule for finding in diagnose(history)}


def test_what_cannot_be_judged_is_said_everywhere(tmp_path):
    imported(trainer_state(tmp_path, entries(100)), tmp_path)
    folder = next((tmp_path / "imported").iterdir())
    assert call("check", folder).stdout.endswith(
        f"no findings, judged by its total norm and what was logged: {LAYERS}\n"
    )
    assert json.loads(call("check", folder, "--format", "json").stdout)["verdict"].endswith(LAYERS)
    assert call("check", folder, "--format", "github").stdout.endswith(f"::{LAYERS}\n")
    shown = call("show", folder).stdout
    assert LAYERS in shown
    assert "Hugging Face's trainer_state.json" in shown
    assert "policy, optimizer, layers, clip rate" in shown  # are not known
    page = render_html(build_report([open_history(folder)]))
    assert "were left alone" not in page
    assert "Layers, in model order" not in page


def test_imported_runs_are_compared_with_others_and_never_as_without_a_policy(tmp_path):
    imported(trainer_state(tmp_path, entries(100)), tmp_path, "--param", "seed=3", "--name", "theirs")
    folder = next((tmp_path / "imported").iterdir())
    frame = build_report([open_history(folder), make_history(clip=None)]).comparison
    assert set(frame["policy"]) == {"not known", "none"}
    assert open_history(folder).run.params["seed"] == "3"


@pytest.mark.slow
def test_it_needs_neither_torch_nor_mlflow(tmp_path):
    code = (
        "import sys; from gradwatch.cli import main\n"
        f"main(['import', {str(trainer_state(tmp_path, entries(5)))!r}, '--dir', {str(tmp_path / 'i')!r}],"
        " standalone_mode=False)\n"
        "assert not {'torch', 'mlflow', 'tensorflow', 'tensorboard'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_trainer_s_own_state_is_read(tmp_path, own_accelerator):
    """As transformers itself writes it: every number of its log_history is in the run."""
    pytest.importorskip("transformers")
    import torch
    from transformers import Trainer, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": ((self.layer(x) - labels) ** 2).mean()}

    data = [{"x": torch.randn(4), "labels": torch.zeros(1)} for _ in range(64)]
    arguments = TrainingArguments(
        tmp_path / "out",
        max_steps=12,
        logging_steps=2,
        save_steps=12,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(Net(), arguments, train_dataset=data)
    trainer.train()
    history, _ = imported(tmp_path / "out" / "checkpoint-12", tmp_path)
    assert history.run.name == "checkpoint-12"
    for entry in trainer.state.log_history[:-1]:
        row = int(np.flatnonzero(history.step == entry["step"])[0])
        for name, theirs in {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}.items():
            assert history.total(name)[row] == entry[theirs]
