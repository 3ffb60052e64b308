"""The script's own arguments tell its runs apart, name no secret, and leave the script alone."""

import argparse
import sys
from pathlib import Path

import pytest
from make_run import make_history

from gradwatch.analysis.final_values import is_seed, seed_text
from gradwatch.analysis.groups import by_setting, values_by_seed
from gradwatch.launcher import patches
from gradwatch.launcher.arguments import Arguments


def parsed(words, monkeypatch, build):
    """The params of a script that is called with `words` and whose parser `build` fills."""
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    arguments, original = Arguments(words), argparse.ArgumentParser.parse_known_args
    undo = patches.parsed(arguments.note)
    parser = argparse.ArgumentParser()
    build(parser)
    try:
        parser.parse_args()
    finally:
        undo()
    assert argparse.ArgumentParser.parse_known_args is original
    return arguments.params()


def test_what_argparse_made_of_them_defaults_included(monkeypatch):
    def build(parser):
        parser.add_argument("data", type=Path)
        parser.add_argument("--dropout", type=float, default=0.1)
        parser.add_argument("--width", type=int, nargs=2, default=[3, 4])
        parser.add_argument("--amp", action="store_true")
        parser.add_argument("--make", default=print)

    params = parsed(["some/data", "--dropout", "5e-1"], monkeypatch, build)
    assert params == {
        "argv": "some/data --dropout 5e-1",
        "args.data": "some/data",
        "args.dropout": "0.5",
        "args.width": "3, 4",
        "args.amp": "False",
    }


def test_a_subcommand_and_another_command_line_of_the_script(monkeypatch):
    def build(parser):
        commands = parser.add_subparsers(dest="command")
        commands.add_parser("train").add_argument("--lr", type=float)
        parser.parse_args(["train", "--lr", "9"])  # its own, not the user's

    params = parsed(["train", "--lr", "0.5"], monkeypatch, build)
    assert (params["args.command"], params["args.lr"]) == ("train", "0.5")


def test_without_argparse_the_words_speak_for_themselves():
    words = ["config/a.py", "--learning-rate=1e-3", "--fast", "--dropout", "-0.5", "model.depth=3", "+x=1", "--n", "2"]
    assert Arguments(words).params() == {
        "argv": "config/a.py --learning-rate=1e-3 --fast --dropout -0.5 model.depth=3 +x=1 --n 2",
        "args.0": "config/a.py",
        "args.learning_rate": "1e-3",
        "args.fast": "True",
        "args.dropout": "-0.5",
        "args.model.depth": "3",
        "args.x": "1",
        "args.n": "2",
    }
    assert Arguments(["--x", "\udcff"]).params()["args.x"] == "?"
    assert Arguments([]).params() == {}


SECRETS = [
    ["--api-key", "S3CR3T"], ["--api_key=S3CR3T"], ["--hf-token", "S3CR3T"], ["--password", "S3CR3T"],
    ["wandb.api_key=S3CR3T"], ["--db", "postgresql://me:S3CR3T@host/db"], ["http://me:S3CR3T@host/"],
    ["--url", "http://host/?token=S3CR3T"],
]  # fmt: skip


@pytest.mark.parametrize("words", SECRETS, ids=lambda words: words[0])
@pytest.mark.parametrize("library", ["argparse", "none"])
def test_no_secret_is_recorded(words, library, monkeypatch):
    def build(parser):
        for name in ("--api-key", "--api_key", "--hf-token", "--password", "--db", "--url"):
            parser.add_argument(name, **({"dest": "other"} if name == "--api_key" else {}))
        parser.add_argument("rest", nargs="*")

    words = [*words, "--max-tokens", "7"] if library == "none" else words
    params = Arguments(words).params() if library == "none" else None
    if params is None:
        params = parsed(words, monkeypatch, build)
    else:
        assert params["args.max_tokens"] == "7"
    assert "S3CR3T" not in str(params)


def run_of(loss, **params):
    history = make_history(steps=4, params=params)
    history.total("loss")[:] = loss
    return history


def test_an_argument_tells_runs_apart_and_a_seed_or_a_place_does_not():
    histories = [
        run_of(1.0, **{"argv": f"{d} {s}", "args.dropout": d, "args.manualSeed": s, "args.out_dir": f"out/{d}-{s}",
                       "args.run_name": f"r{s}", "args.master_port": f"p{s}"})
        for d in ("0.1", "0.5") for s in ("0", "1")
    ]  # fmt: skip
    found = by_setting(histories)
    assert [dict(values) for values in found] == [{"args.dropout": "0.1"}, {"args.dropout": "0.5"}]
    members = [runs for of in found.values() for runs in of.values()]
    assert [list(values_by_seed(runs, "loss")) for runs in members] == [["0", "1"]] * 2


@pytest.mark.parametrize(
    "name", ["data", "data_dir", "model_name", "checkpoint", "resume", "log_interval", "optimizer"]
)
def test_what_may_change_the_result_is_compared(name):
    histories = [run_of(1.0, **{f"args.{name}": value}) for value in ("a/b", "a/c")]
    assert len(by_setting(histories)) == 2


def test_a_number_is_a_setting_whatever_it_is_called():
    assert len(by_setting([run_of(1.0, **{"args.out": value}) for value in ("10", "20")])) == 2


def test_an_argument_that_repeats_a_setting_is_one_column():
    histories = [
        make_history(steps=4, params={"args.lr": lr}, optimizers=({"class": "SGD", "settings": {"lr": float(lr)}},))
        for lr in ("0.1", "0.5")
    ]
    assert [dict(values) for values in by_setting(histories)] == [{"lr": "0.1"}, {"lr": "0.5"}]


def test_the_seed_of_the_sweep_and_of_the_script_are_one():
    assert seed_text(run_of(1.0, **{"args.seed": "3", "seed": "3"}).run) == "3"
    assert seed_text(run_of(1.0, **{"args.seed": "1", "seed": "3"}).run) == "1, 3"
    assert is_seed("args.manualSeed")
    assert not is_seed("args.unseed")
