"""Several processes: what is recorded and done equals a single process, however tensors are spread (ranks.py)."""

import functools
import re
import sys

import numpy as np
import pytest
import ranks
import torch
from gloo import AT_THE_END
from torchrun import ROOT, SUPPORT, launched_once, torchrun

from gradwatch import open_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]
SIZES = [2, 4]
CASES = [
    pytest.param(size, name, i, id=f"{size}-{name}-{i}")
    for size, scenarios in ranks.SCENARIOS.items()
    for name, (*_, pairs) in scenarios.items()
    for i in range(len(pairs))
]


@pytest.fixture(scope="session")
def launched(tmp_path_factory, worker_id):
    """The folder in which the ranks left what they saw; all scenarios of one number of ranks run once."""

    def run(size):
        command = ("ranks.py", "main")
        return launched_once(tmp_path_factory, worker_id, f"ranks{size}", size, *command, PYTHONFAULTHANDLER="1")

    return run


@pytest.fixture(scope="session")
def alone(tmp_path_factory):
    """What a single process records, and its weights at the end."""

    @functools.cache
    def run(clip, renorm):
        folder = tmp_path_factory.mktemp("alone")
        seen = ranks.train(folder, lambda model: model, 1, torch.float64, False, clip, renorm)
        (own,) = folder.iterdir()
        return open_history(own), seen["weights"]

    return run


def quantities(history):
    return sorted({*history.per_layer, "clipped_norm"})


@pytest.mark.parametrize(("size", "name", "i"), CASES)
def test_ranks_together_are_one_process(size, name, i, launched, alone):
    folder = launched(size)
    *_, unused, pairs = ranks.SCENARIOS[size][name]
    clip, renorm = pairs[i]
    (run,) = (folder / name / str(i)).iterdir()  # rank 0 alone writes
    got = open_history(run)
    seen = [torch.load(folder / f"{name}-{i}-rank{r}.pt") for r in range(size)]

    for layer, weights in seen[0]["weights"].items():
        assert all(torch.equal(weights, other["weights"][layer]) for other in seen[1:])
    for step, norms in enumerate(seen[0]["oracle"]):
        names = [*norms]
        want = [np.nan if n is None else n for n in norms.values()]
        np.testing.assert_allclose(got.layer("grad_norm")[step], want, rtol=1e-5, err_msg=f"{names} at step {step}")
    if unused or name.endswith("bf16"):
        return  # the oracle is all there is: another split of the batch gives other gradients

    want, want_weights = alone(clip, renorm)
    # what the optimizer keeps of a layer is on one rank alone
    known = [q for q in quantities(want) if name != "zero-redundancy" or not q.startswith("slot_norm/")]
    assert (got.layers, quantities(got)) == (want.layers, known)
    for quantity in known:
        message = f"{quantity} under {clip or renorm}"
        # a layer of few elements may have some exactly at a threshold
        np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-5, atol=1e-7, err_msg=message)
    for layer, weights in want_weights.items():
        torch.testing.assert_close(seen[0]["weights"][layer], weights, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("size", SIZES)
def test_a_plain_step_has_the_same_collectives_however_many_layers(size, launched):
    for name, (*_, pairs) in ranks.SCENARIOS[size].items():
        if name in ("sequence-parallel", "zero-redundancy"):
            continue  # Partial gradients have to be summed up as well, as the optimizer itself does; weights, sent
        for i, (clip, renorm) in enumerate(pairs):
            if renorm or "Norm(0.1)" not in (clip or "ClipByGlobalNorm(0.1)") or "Value" in (clip or ""):
                continue
            (run,) = (launched(size) / name / str(i)).iterdir()
            plain = open_history(run).total("collectives")[1::2]  # every second step also measures weights
            # of the gradients, and with `slots` of what it looks at after the step
            assert set(plain) == ({0} if name.startswith("ddp") or name.endswith("no-shard") else {2}), (name, clip)


def test_each_ranks_own_norm_is_recorded_on_request(launched):
    folder = launched(2)
    (run,) = (folder / "ranks").iterdir()
    history = open_history(run)
    seen = [torch.load(folder / f"ranks-{rank}.pt") for rank in (0, 1)]
    for rank in (0, 1):
        np.testing.assert_allclose(history.total(f"rank_grad_norm/{rank}"), seen[rank]["own"], rtol=1e-5)
    assert "rank_grad_norm/0" not in history.logged
    untouched = torch.load(folder / "ddp-0-rank0.pt")["weights"]
    assert all(torch.equal(untouched[name], weights) for name, weights in seen[0]["weights"].items())


def test_what_cannot_be_told_is_refused(launched):
    for rank in (0, 1):
        texts = torch.load(launched(2) / f"refusals-{rank}.pt")
        assert "would see only this rank's part" in texts["function"]
        assert "the model is a FSDPNet" in texts["ranks"]
        assert "has one already" in texts["hook"]
        assert "Pass use_orig_params=True" in texts["buffers"]
        assert all("cuts flattened layers" in texts[name] for name in ("rows", "units"))
        assert all("hides its rows" in texts[name] for name in ("matrices", "spectral"))
        assert "hide which gradients" in texts["micro-batches"]


def test_a_rank_that_raises_ends_the_run_and_waits_for_nobody(tmp_path):
    done = torchrun(2, SUPPORT / "ranks.py", "raise_on_one", tmp_path)
    assert done.returncode == 1
    assert "rank 1 is out of data" in done.stderr
    (run,) = tmp_path.iterdir()
    assert run.is_dir()


def test_all_ranks_halt_at_the_same_step(launched):
    folder = launched(2)
    first, second = (torch.load(folder / f"halt-{rank}.pt", weights_only=False) for rank in (0, 1))
    assert first["taken"] == second["taken"] == 48  # rank 0 heard of it at step 37; they ask each other every 16 steps
    assert first["said"][1] == second["said"][1]
    assert first["said"][1].summary == "exploding at step 30 in head.weight"
    assert all("Lower the rate." in seen["said"][0] for seen in (first, second))
    for name, weights in first["weights"].items():
        assert torch.equal(weights, second["weights"][name])
    for seen in (first, second):
        assert [step for step, calls in enumerate(seen["calls"]) if calls] == [16, 32]
    (run,) = (folder / "runs").iterdir()
    history = open_history(run)
    assert (len(history), history.run.status) == (48, "FAILED")


def test_the_script_of_the_docs_page_runs(tmp_path):
    page = (ROOT / "docs" / "distributed.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1] + "\n\nmain()\n" + AT_THE_END)
    done = torchrun(2, script, cwd=tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/mlflow.db")
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = (tmp_path / "gradwatch-runs").iterdir()
    assert len(open_history(run)) == 100


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch offloads to the CPU only from a CUDA device")
def test_offloaded_shards_are_measured_where_they_are(alone, tmp_path):
    done = torchrun(1, SUPPORT / "ranks.py", "cpu_offload", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for i, (clip, renorm) in enumerate([*ranks.MIXED, (None, "MaxNorm(0.5)")]):
        (run,) = (tmp_path / str(i)).iterdir()
        got, (want, weights) = open_history(run), alone(clip, renorm)
        for quantity in quantities(want):
            np.testing.assert_allclose(got.layer(quantity), want.layer(quantity), rtol=1e-5, atol=1e-7)
        for layer, end in torch.load(tmp_path / f"{i}.pt")["weights"].items():
            torch.testing.assert_close(end.cpu(), weights[layer], rtol=1e-8, atol=1e-10)
