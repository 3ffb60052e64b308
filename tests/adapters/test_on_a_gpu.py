"""Trainers of the field on a CUDA device, in the precisions that are used there, against gradients as they were."""

import numpy as np
import pytest
import torch
from devices import ON_GPU
from torch import nn
from training import batches, mlp, watch

from gradwatch import open_history

pytestmark = [*ON_GPU, pytest.mark.usefixtures("own_accelerator")]
CLIP = 0.1
POLICY = f"ClipByGlobalNorm({CLIP})"


def norms_of(model):
    return [p.grad.double().norm().item() for p in model.parameters()]


def check(history, norms, after=None):
    """Norms as they were before the clip; where a step overflowed, they are told to be no numbers."""
    finite = np.isfinite(norms).all(1)
    assert finite.sum() >= 4
    np.testing.assert_allclose(history.layer("grad_norm")[finite], np.array(norms)[finite], rtol=1e-5)
    assert not np.isfinite(history.total("grad_norm")[~finite]).any()
    if after is not None:
        totals = np.linalg.norm(np.array(after)[finite], axis=1)
        assert totals == pytest.approx(np.minimum(CLIP, np.linalg.norm(np.array(norms)[finite], axis=1)), rel=1e-3)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed", "bf16-true"])
def test_lightning(precision, tmp_path):
    L = pytest.importorskip("lightning.pytorch")
    from gradwatch.adapters.lightning import GradWatch

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.before = mlp(torch.float32), []

        def training_step(self, batch, batch_idx):
            weight = self.net[0].weight
            loss = nn.functional.cross_entropy(self.net(batch[0].to(weight.dtype)).float(), batch[1])
            self.log("train_loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.net.parameters(), lr=0.01)

        def configure_gradient_clipping(self, *args, **kwargs):
            self.before.append(norms_of(self.net))

    net, callback = Net(), GradWatch(clip=POLICY, log=None, dir=tmp_path / "runs", verbose=False)
    data = torch.utils.data.DataLoader(list(batches(8, torch.float32)), batch_size=None)
    L.Trainer(
        accelerator="gpu", devices=1, precision=precision, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
    ).fit(net, data)  # fmt: skip
    check(open_history(callback.watch.dir), net.before)


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"fp16": True}, {"optim": "adamw_torch_fused"}], ids=str)
def test_transformers(options, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from gradwatch.adapters.transformers import GradWatchCallback

    class Norms(transformers.TrainerCallback):
        def __init__(self):
            self.before, self.after = [], []

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            self.before.append(norms_of(model))

        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            self.after.append(norms_of(model))

    torch.manual_seed(0)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    rows = torch.randint(32, (64, 12), generator=torch.Generator().manual_seed(1))
    args = transformers.TrainingArguments(
        tmp_path / "out", report_to="none", disable_tqdm=True, logging_steps=1, save_strategy="no", max_steps=8,
        per_device_train_batch_size=4, learning_rate=0.01, max_grad_norm=1e6,  # which takes the scale off
        **{"optim": "adamw_torch", **options},
    )  # fmt: skip
    callback = GradWatchCallback(clip=POLICY, log=None, dir=tmp_path / "runs", verbose=False)
    norms = Norms()
    data = [{"input_ids": row, "labels": row} for row in rows]
    transformers.Trainer(model, args, train_dataset=data, callbacks=[norms, callback]).train()
    assert next(model.parameters()).device.type == "cuda"
    check(open_history(callback.watch.dir), norms.before, norms.after)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_accelerate(precision, tmp_path):
    from_accelerate = pytest.importorskip("accelerate")
    accelerator = from_accelerate.Accelerator(mixed_precision=precision)
    model, norms, after = mlp(torch.float32), [], []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader(list(batches(10, torch.float32)), batch_size=None)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    with watch(model, optimizer, tmp_path, clip=POLICY) as handle:
        for x, y in data:
            accelerator.backward(nn.functional.cross_entropy(model(x).float(), y))
            accelerator.unscale_gradients()
            norms.append(norms_of(model))
            optimizer.step()
            after.append(norms_of(model))
            optimizer.zero_grad()
    check(open_history(handle.dir), norms, after)
