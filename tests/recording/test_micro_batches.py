"""`noise_scale=True`: the first micro-batch's norm is that of float64, in every way to accumulate; and what follows."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history
from gradwatch.analysis.noise_scale import estimates, noise_scale

PARTS = 4


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def train(folder, steps=6, parts=PARTS, mean=True, to_none=True, scaler=None, between=None, noise=True, **options):
    """Train; the history, the float64 norms of each step's first micro-batch times their number, and the weights."""
    model, copy = net(), net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator, wanted = torch.Generator().manual_seed(1), []
    with watch(model, optimizer, folder, noise_scale=noise, every=2, **options) as handle:
        for _ in range(steps):
            for part in range(parts):
                x = torch.randn(8, 6, generator=generator)
                share = 1 / parts if mean else 1.0
                if part == 0:
                    copy.load_state_dict(model.state_dict())
                    copy.zero_grad()
                    (copy(x.double()).square().mean() * share).backward()
                    wanted.append(parts * torch.cat([p.grad.flatten() for p in copy.parameters()]).norm().item())
                loss = model(x).square().mean() * share
                (loss if scaler is None else scaler.scale(loss)).backward()
                if between is not None:
                    between(model, part)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            optimizer.zero_grad(set_to_none=to_none)
    return open_history(handle.dir), np.array(wanted), [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("clip", [None, "ClipByGlobalNorm(0.05)"])
@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("mean", [True, False])
def test_the_norm_of_the_first_micro_batch_is_the_oracles(mean, to_none, clip, tmp_path):
    history, wanted, _ = train(tmp_path, mean=mean, to_none=to_none, clip=clip)
    found = history.total("micro_grad_norm")
    known = np.isfinite(found)
    # gradients of zeros that nobody has written to before the first step may be an earlier one's
    assert known.tolist() == [True, False] * 3
    np.testing.assert_allclose(found[known], wanted[known], rtol=1e-5)
    assert history.total("micro_batches")[known].tolist() == [PARTS] * 3


def test_a_loss_scale_is_taken_out(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    history, wanted, _ = train(tmp_path, scaler=scaler)
    np.testing.assert_allclose(history.total("micro_grad_norm")[::2], wanted[::2], rtol=1e-5)


def test_training_is_bit_identical(tmp_path):
    with_, without = (train(tmp_path / str(on), noise=on)[2] for on in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_, without, strict=True))


def clip_each(model, part):
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def test_what_is_not_the_first_micro_batchs_own_is_left_out(tmp_path):
    assert "micro_grad_norm" not in train(tmp_path / "clipped", between=clip_each)[0].per_step
    found = train(tmp_path / "kept", to_none=False, between=None)[0]
    assert "micro_grad_norm" in found.per_step

    class Forgets(torch.optim.SGD):
        def zero_grad(self, set_to_none=True):
            pass

    model = net()
    optimizer = Forgets(model.parameters(), lr=1e-4)
    with watch(model, optimizer, tmp_path / "summed", noise_scale=True, every=1) as handle:
        for _ in range(4 * PARTS):
            model(torch.ones(2, 6)).sum().backward()
            if _ % PARTS == PARTS - 1:
                optimizer.step()
                optimizer.zero_grad()
    found = open_history(handle.dir).total("micro_grad_norm")
    assert np.isfinite(found).tolist() == [True, False, False, False]  # at first there was nothing to forget


def test_a_first_micro_batch_that_is_thrown_away_is_none(tmp_path):
    def throw(model, part):
        if part == 0:
            model.zero_grad()

    history, wanted, _ = train(tmp_path, between=throw)
    assert history.total("micro_batches")[::2].tolist() == [PARTS - 1] * 3
    assert not np.isclose(history.total("micro_grad_norm")[0] * PARTS / (PARTS - 1), wanted[0], rtol=1e-3)


def test_a_loop_without_accumulation_is_told_once(tmp_path, capfd):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        history, _, _ = train(tmp_path, parts=1)
    assert "micro_grad_norm" not in history.per_step
    assert sum("one backward" in str(w.message) for w in said) == 1


def test_backward_is_torchs_own_outside_of_sampled_steps(tmp_path):
    own, model = torch.autograd.backward, net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, tmp_path, noise_scale=True, every=3):
        seen = []
        for _ in range(6):
            seen.append(torch.autograd.backward is own)
            model(torch.ones(2, 6)).sum().backward()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert seen == [False, True, True] * 2
    assert torch.autograd.backward is own


def test_the_gradient_is_not_held_beyond_its_time(tmp_path):
    """What is zeroed to None is free: no second set of gradients is kept."""
    import gc
    import weakref

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch(model, optimizer, tmp_path, noise_scale=True, every=1):
        for _ in range(2):
            model(torch.ones(2, 6)).sum().backward()
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()
        held = weakref.ref(model[0].weight.grad)
        optimizer.zero_grad()
        gc.collect()
        assert held() is None


def test_the_noise_scale_of_known_noise_is_found(tmp_path):
    """Gradients that are a vector and noise of known size: S / |G|^2 is the variance over the square."""
    model = nn.Linear(50, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    true, sigma = torch.full((50,), 0.1), 0.2
    generator = torch.Generator().manual_seed(0)
    with watch(model, optimizer, tmp_path, noise_scale=True, every=1) as handle:
        for _ in range(400):
            for _ in range(PARTS):
                gradient = true + sigma * torch.randn(50, generator=generator)
                (model(gradient[None]) / PARTS).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = noise_scale(*estimates(open_history(handle.dir)))
    # of one micro-batch sigma^2 * 50 / |true|^2 = 4; a batch is four of them
    assert found == pytest.approx(sigma**2 / 0.01 / PARTS, rel=0.15)
