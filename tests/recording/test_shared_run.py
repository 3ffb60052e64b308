"""Named Watches on two local ranks: stages of a pipeline are one run, and nobody waits for anybody after `watch()`."""

import re
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gloo import AT_THE_END
from torch import nn
from torchrun import torchrun
from training import mlp, train, watch

from gradwatch import RunError, WatchError, open_history
from gradwatch.storage.folder import read_manifest
from gradwatch.storage.shared_folder import part_folders

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not dist.is_available(), reason="needs gloo"),
]
ROOT = Path(__file__).parents[2]
SCRIPT = re.findall(r"^```py\n(.*?)^```", (ROOT / "docs/several.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)[0]


def in_files_only(script):
    changed = script.replace('run_name="pipeline"', 'run_name="pipeline", log=None')
    assert changed != script
    return changed


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """The run of the documentation's script on two ranks."""
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "pipeline.py").write_text(in_files_only(SCRIPT) + AT_THE_END)
    done = torchrun(2, "pipeline.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "gradwatch-runs").iterdir()
    return run


def test_the_stages_record_what_one_process_records_of_the_whole_model(pipeline, tmp_path):
    script = {}
    exec(SCRIPT.split("if __name__")[0], script)
    stages = script["build"]()
    model = nn.Sequential(*stages)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path) as handle:
        for inputs, labels in script["batches"](50):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            handle.log(loss=loss)
    want, got = open_history(handle.dir), open_history(pipeline)
    assert got.layers == tuple(f"stage{name}" for name in want.layers)  # 0.0.weight -> stage0.0.weight
    assert {name: len(lane) for name, lane in got.lanes().items()} == {"stage0": 50, "stage1": 50}
    for quantity in ("grad_norm", "weight_norm", "update_ratio"):
        values = np.concatenate([lane.layer(quantity) for lane in got.lanes().values()], axis=1)
        np.testing.assert_allclose(values, want.layer(quantity), rtol=1e-5)
    for lane in got.lanes().values():
        np.testing.assert_allclose(lane.total("grad_norm"), want.total("grad_norm"), rtol=1e-5)
    np.testing.assert_allclose(got.lanes()["stage1"].total("loss/stage1"), want.total("loss"), rtol=1e-6)


def test_the_stages_are_one_run(pipeline):
    assert pipeline.name.endswith("-pipeline")
    assert [path.name for path in part_folders(pipeline)] == ["stage0", "stage1"]
    manifests = [read_manifest(path) for path in part_folders(pipeline)]
    assert len({manifest.pid for manifest in manifests}) == 2  # each written by its own rank
    assert [len(manifest.layers) for manifest in manifests] == [2, 4]


# ------------------------------------------------------------------------------------------------- what the ranks do


def meet(rank, folder, name):
    place, patience = f"file://{folder}/{name}.rendezvous", timedelta(seconds=90)  # a lost rank is an error, no hang
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=patience)


def start(rank, folder, **options):
    model = mlp(seed=rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, watch(model, optimizer, folder, **options)


def scenes(rank, folder):
    """One after the other, each in a folder of its own; what is left on disk is for the test to look at."""
    meet(rank, folder, "alone")
    if rank == 0:  # an unnamed Watch must not wait for the other rank, which makes none
        model, optimizer, handle = start(rank, folder / "alone")
        train(model, optimizer, 2)
        handle.close()
    dist.barrier()

    model, optimizer, handle = start(rank, folder / "silent", name=f"s{rank}")
    second = start(rank, folder / "elsewhere", name=f"t{rank}", run=handle)
    dist.destroy_process_group()  # from here on every communication would raise
    train(model, optimizer, 3 + rank, after_step=lambda _, loss: handle.log(loss=loss))
    train(*second[:2], 2)
    state = handle.state_dict()
    handle.close()
    second[2].close()

    meet(rank, folder, "resumed")
    model, optimizer, handle = start(rank, folder / "silent", name=f"s{rank}")
    handle.load_state_dict(state)
    train(model, optimizer, 2)
    handle.close()

    model, optimizer, handle = start(rank, folder / "replicas", name="same")  # two copies of one stage
    train(model, optimizer, 2)
    assert handle.dir.name == "same"
    handle.close()

    with pytest.raises(RunError, match="Not a directory"):  # on both ranks, though only rank 0 has tried
        start(rank, folder / "file", name=f"s{rank}")
    *_, handle = start(rank, folder / "mixed", name=f"x{rank}")
    with pytest.raises(WatchError, match="some ranks gave run="):
        start(rank, folder / "mixed", name=f"y{rank}", run=handle if rank else None)
    dist.destroy_process_group()


def test_ranks_agree_once_and_then_leave_each_other_alone(tmp_path):
    (tmp_path / "file").write_text("")
    torch.multiprocessing.spawn(scenes, (tmp_path,), nprocs=2)
    assert len(open_history(next((tmp_path / "alone").iterdir()))) == 2
    (silent,) = (tmp_path / "silent").iterdir()  # the folders that were made to resume are gone
    assert not (tmp_path / "elsewhere").exists()
    lanes = open_history(silent).lanes()
    assert {name: len(lane) for name, lane in lanes.items()} == {"s0": 5, "s1": 6, "t0": 2, "t1": 2}
    assert lanes["s1"].attempt.tolist() == [0] * 4 + [1] * 2
    assert np.isfinite(lanes["s0"].total("loss/s0")[:3]).all()
    (replicas,) = (tmp_path / "replicas").iterdir()
    assert [path.name for path in part_folders(replicas)] == ["same"]
    want = mlp(seed=0)  # rank 0 has written it, not rank 1
    with watch(want, torch.optim.SGD(want.parameters(), lr=0.1), tmp_path / "want") as handle:
        train(want, next(iter(handle._stepper.optimizers)), 2)
    np.testing.assert_array_equal(
        open_history(replicas).layer("grad_norm"), open_history(handle.dir).layer("grad_norm")
    )
