"""LoRA by PEFT in a plain loop, held against the same loop without a Watch. Skips where it is not installed."""

import numpy as np
import pytest
import torch
from torch import nn
from training import watch

from gradwatch import open_history

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
MAX_NORM, STEPS = 0.005, 5


def adapted():
    """A small GPT-2 whose attention has adapters of rank 2; all else is frozen."""
    torch.manual_seed(0)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **drop, bos_token_id=0, eos_token_id=0))
    lora = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, lora)


def train(tmp_path=None, clip=None, own_clip=None):
    """The model, the norms of the gradients before any clip, `[T, L]` float64, and what was recorded."""
    model, norms = adapted(), []
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    handle = watch(model, optimizer, tmp_path, clip=clip) if tmp_path else None
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(32, (4, 12), generator=generator)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        params = [p for p in model.parameters() if p.requires_grad]
        norms.append([p.grad.double().norm().item() for p in params])
        if own_clip:
            nn.utils.clip_grad_norm_(params, own_clip)
        optimizer.step()
    if handle:
        handle.close()
    return model, np.array(norms), handle and open_history(handle.dir)


def test_the_adapters_are_the_layers_and_train_as_without_a_watch(tmp_path):
    bare, want, _ = train()
    model, _, history = train(tmp_path)
    assert list(history.layers) == [name for name, p in model.named_parameters() if p.requires_grad]
    assert all("lora_" in name for name in history.layers)
    np.testing.assert_allclose(history.layer("grad_norm"), want, rtol=2e-5)
    assert all(map(torch.equal, model.parameters(), bare.parameters()))


def test_a_clip_is_that_of_torch(tmp_path):
    bare, want, _ = train(own_clip=MAX_NORM)
    model, _, history = train(tmp_path, clip=f"ClipByGlobalNorm({MAX_NORM})")
    assert (history.total("clip_coef") < 1).all()
    np.testing.assert_allclose(history.layer("grad_norm"), want, rtol=1e-4)
    for ours, theirs in zip(model.parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
