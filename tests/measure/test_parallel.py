"""Experts on meshes of their own, and stages of a pipeline: all ranks together are one process (ranks_parallel.py)."""

import sys

import numpy as np
import pytest
import ranks_parallel
import torch
from torchrun import launched_once

from gradwatch import open_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32" or not torch.distributed.is_available(), reason="needs gloo"),
]
LAYOUTS = [
    "alone",
    "plain slices",
    "plain slices, dense sharded",
    "slices that are sharded",
    "a mesh inside another",
    "meshes side by side",
]
TOTALS = ("grad_norm", "clipped_norm", "clip_coef", "skipped")


@pytest.fixture(scope="session")
def launched(tmp_path_factory, worker_id):
    """The folder in which the four ranks left what they saw."""
    return launched_once(tmp_path_factory, worker_id, "parallel", 4, "ranks_parallel.py")


@pytest.mark.parametrize("name", LAYOUTS)
def test_experts_count_once_however_their_mesh_lies(name, launched):
    """NVIDIA-NeMo/Automodel#3816: each expert-parallel group had a norm, and a coefficient, of its own."""
    folder, grads = launched / "experts", ranks_parallel.gradients()
    (run,) = (folder / name).iterdir()
    history = open_history(run)
    want = {layer: grad.norm().item() for layer, grad in grads.items()}
    total = np.hypot(*want.values())
    np.testing.assert_allclose(history.layer("grad_norm")[0], [want[layer] for layer in history.layers], rtol=1e-6)
    np.testing.assert_allclose(history.total("grad_norm")[0], total, rtol=1e-6)
    assert [layer.shape for layer in history.run.layers] == [tuple(grads[layer].shape) for layer in history.layers]
    seen = [torch.load(folder / f"{name}-{rank}.pt") for rank in range(4)]
    for ones in seen:
        assert ones["moved"]["dense"] == pytest.approx(want["dense"] / total, rel=1e-5)
    if seen[0]["dense"] is not None:
        assert all(torch.equal(seen[0]["dense"], other["dense"]) for other in seen[1:])


def test_what_is_said_of_experts_and_stages_is_checked(launched):
    for rank in range(4):
        said = torch.load(launched / "experts" / f"refused-{rank}.pt")
        assert "fits no layer" in said["pattern"]
        assert "wanted a process group" in said["kind"]
        assert "a unit that lies across it" in said["unit"]
        assert "pipeline= without name=" in said["no name"]


CASES = [(kind, i, clip) for kind, (_, _, clips) in ranks_parallel.SCHEDULES.items() for i, clip in enumerate(clips)]


@pytest.mark.parametrize(("kind", "i", "clip"), CASES)
def test_the_stages_of_a_pipeline_have_one_norm(kind, i, clip, launched, tmp_path):
    folder = launched / "pipeline" / kind
    own, weights = ranks_parallel.alone(tmp_path, clip, ranks_parallel.SCHEDULES[kind][1]())
    want = open_history(own)
    (run,) = (folder / str(i)).iterdir()
    stages = [open_history(run / f"stage{place}") for place in (0, 1)]
    for stage in stages:
        for name in TOTALS:
            np.testing.assert_allclose(stage.total(name), want.total(name), rtol=1e-5, atol=1e-7, err_msg=name)
    got = np.concatenate([stage.layer("grad_norm") for stage in stages], axis=1)
    order = in_one_process(kind, len(weights))
    np.testing.assert_allclose(got, want.layer("grad_norm")[:, order], rtol=1e-5)
    seen = [torch.load(folder / f"weights-{i}-{rank}.pt") for rank in range(4)]
    for replica in (seen[0] + seen[1], seen[2] + seen[3]):
        for place, part in zip(order, replica, strict=True):
            torch.testing.assert_close(part.detach(), weights[place], rtol=1e-8, atol=1e-10)


def in_one_process(kind, layers):
    """Where the layers of both ranks lie in one process: of four stages the first and third are the first rank's."""
    return [0, 1, 4, 5, 2, 3, 6, 7] if kind == "interleaved" else list(range(layers))


def test_the_policies_of_the_pipeline_act_and_skip(launched):
    skipped = {}
    for kind, i, clip in CASES:
        (run,) = (launched / "pipeline" / kind / str(i)).iterdir()
        stage = open_history(run / "stage0")
        skipped[kind, clip] = int(stage.total("skipped").sum())
        assert clip is None or skipped[kind, clip] or (stage.total("clip_coef") < 1).any(), clip
        if clip and clip.startswith("only") and "Skip" not in clip:  # it fits no layer of this stage
            assert (stage.layer("clip_coef") == 1).all()
    for kind in ranks_parallel.SCHEDULES:
        assert skipped[kind, "chain(SkipNonfinite(), ClipByGlobalNorm(0.3))"] == 1
    assert 0 < skipped["gpipe", "SkipNorm(0.43)"] < ranks_parallel.STEPS
    assert 0 < skipped["gpipe", ranks_parallel.CLIPS[-1]] < ranks_parallel.STEPS


@pytest.mark.parametrize("kind", ranks_parallel.SCHEDULES)
def test_a_stage_of_which_the_others_are_not_known_is_refused(kind, launched):
    stages = 4 if kind == "interleaved" else 2
    for rank in range(4):
        said = torch.load(launched / "pipeline" / kind / f"lone-{rank}.pt")
        own = range(rank % 2, stages, 2)
        assert any(f"is stage {i} of {stages} of a pipeline" in said["lone"] for i in own)
        assert "with pipeline=" in said["lone"]


def test_a_pattern_that_fits_no_stage_is_refused_on_all(launched):
    for rank in range(4):
        said = torch.load(launched / "pipeline" / "gpipe" / f"lone-{rank}.pt")
        assert "only('nothing*', ...): no layer fits" in said["vain"]
        assert "only('*1.0.*', ...): no layer fits" in said["nested"]
