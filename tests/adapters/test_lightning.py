"""The Lightning callback in Lightning's own trainer, held against plain loops of torch that do the same."""

import importlib.util
import shutil
import signal
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from training import batches, mlp, watch

from gradwatch import open_history
from gradwatch.adapters import __file__ as adapters
from gradwatch.tracking.courier import Courier

L = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.core.optimizer import LightningOptimizer  # noqa: E402
from lightning.pytorch.loggers import MLFlowLogger  # noqa: E402

from gradwatch.adapters.lightning import GradWatch  # noqa: E402

CLIP = "ClipByGlobalNorm(0.1)"
BATCHES = list(batches(8))  # of one epoch
DATA = DataLoader(BATCHES, batch_size=None)


class Net(L.LightningModule):
    """The small MLP, with dropout so that random numbers count; validation logs its loss."""

    def __init__(self, dtype=torch.float64, dropout=0.0):
        super().__init__()
        self.net, self.drop = mlp(dtype), nn.Dropout(dropout)
        self.before, self.seen = [], []  # float64 norms of the gradients, before Lightning's clip and after it

    def loss(self, batch):
        return nn.functional.cross_entropy(self.net(self.drop(batch[0])).float(), batch[1])

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log_dict({"train_loss": loss, "grad_norm": 7.0}, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val_loss": self.loss(batch), "lr": 3.0, "val/share": 0.25})

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.5, momentum=0.9)

    def configure_gradient_clipping(self, *args, **kwargs):
        self.before.append([p.grad.double().norm().item() for p in self.net.parameters()])
        super().configure_gradient_clipping(*args, **kwargs)
        self.seen.append([p.grad.double().norm().item() for p in self.net.parameters()])


def trainer(*callbacks, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return L.Trainer(
        accelerator="cpu", enable_model_summary=False, callbacks=[*callbacks], **{**quiet, **options}
    )  # fmt: skip


def gradwatch(tmp_path, **options):
    return GradWatch(**{"log": None, "dir": tmp_path / "runs", "verbose": False, **options})


def fit(net, callback, val=None, **options):
    trainer(*([callback] if callback else []), **options).fit(net, DATA, val)
    return callback and open_history(callback.watch.dir)


def plain(net, epochs=1, accumulate=1, clip=None):
    """The same training without Lightning and gradwatch: per step the gradient norms before `clip`, and the loss."""
    (optimizer,), norms, losses = [net.configure_optimizers()], [], []
    for _ in range(epochs):
        for first in range(0, len(BATCHES), accumulate):
            optimizer.zero_grad()
            parts = [net.loss(batch) / accumulate for batch in BATCHES[first : first + accumulate]]
            sum(parts).backward()
            norms.append([p.grad.norm().item() for p in net.net.parameters()])
            losses.append(sum(parts).item())
            if clip:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
    return norms, losses


def same_weights(a, b, exactly=False):
    tolerance = {"rtol": 0, "atol": 0} if exactly else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(a.net.state_dict(), b.net.state_dict(), **tolerance)


# ------------------------------------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_fit_is_what_a_plain_loop_with_torchs_clip_is(accumulate, tmp_path):
    want, got = Net(), Net()
    norms, losses = plain(want, epochs=2, accumulate=accumulate, clip=0.1)
    history = fit(got, gradwatch(tmp_path, clip=CLIP), max_epochs=2, accumulate_grad_batches=accumulate)
    same_weights(got, want)
    assert history.step.tolist() == list(range(2 * -(-8 // accumulate)))
    assert history.layers == ("net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias")
    np.testing.assert_allclose(history.layer("grad_norm"), norms, rtol=1e-6)
    np.testing.assert_allclose(history.total("loss"), losses, rtol=1e-6)
    assert history.run.name == "Net"
    assert history.run.total_steps == len(history)
    assert history.run.status == "FINISHED"


def test_without_a_policy_a_fit_is_bit_identical(tmp_path):
    nets, random = [Net(torch.float32, dropout=0.5) for _ in range(2)], []
    data = DataLoader([(x.float(), y) for x, y in BATCHES], batch_size=None)
    for net, callbacks in zip(nets, ([], [gradwatch(tmp_path, slots=True, every=2)]), strict=True):
        torch.manual_seed(3)
        trainer(*callbacks, max_epochs=3).fit(net, data, data)
        random.append(torch.rand(1))
    same_weights(*nets, exactly=True)
    assert random[0] == random[1]


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_lightnings_own_clip_comes_first(algorithm, tmp_path):
    want, got = Net(), Net()
    options = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": algorithm}
    fit(want, None, **options)
    history = fit(got, gradwatch(tmp_path), **options)
    same_weights(got, want, exactly=True)
    np.testing.assert_allclose(history.layer("grad_norm"), got.seen, rtol=1e-6)
    assert (np.linalg.norm(got.before, axis=1) > 0.05).all()
    if algorithm == "norm":
        np.testing.assert_allclose(history.total("grad_norm"), 0.05, rtol=1e-5)
        assert set(history.total("user_max_norm")) == {0.05}
        np.testing.assert_allclose(history.total("user_grad_norm"), np.linalg.norm(got.before, axis=1), rtol=1e-5)
    else:
        assert set(history.total("user_clip_value")) == {0.05}


def test_mixed_precision(tmp_path):
    net = Net(torch.float32)
    data = DataLoader([(x.float(), y) for x, y in BATCHES], batch_size=None)
    callback = gradwatch(tmp_path, clip=CLIP)
    trainer(callback, precision="bf16-mixed").fit(net, data)
    np.testing.assert_allclose(open_history(callback.watch.dir).layer("grad_norm"), net.seen, rtol=1e-6)


def test_validation_metrics_stand_where_they_were_made(tmp_path):
    net = Net()
    history = fit(net, gradwatch(tmp_path), val=DATA, max_epochs=3, val_check_interval=4)
    logged = history.total("val_loss")
    assert np.flatnonzero(np.isfinite(logged)).tolist() == [3, 7, 11, 15, 19, 23]
    assert logged[-1] == np.float32(sum(net.loss(batch) for batch in BATCHES).item() / len(BATCHES))
    assert history.total("val/share")[3] == 0.25
    # neither gradwatch's own names, nor what training logged at another step
    assert set(history.logged) == {"loss", "val_loss", "val/share"}
    np.testing.assert_allclose(history.total("lr"), 0.5)


# --------------------------------------------------------------------------------------------- manual optimization


class Manual(Net):
    """Two batches make one step, by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.losses = []

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = self.loss(batch)
        self.manual_backward(loss / 2)
        if batch_idx % 2:
            optimizer.step()
            optimizer.zero_grad()
        self.losses.append(loss.item())
        return loss


def test_manual_optimization(tmp_path):
    want, got = Net(), Manual()
    norms, _ = plain(want, accumulate=2, clip=0.1)
    history = fit(got, gradwatch(tmp_path, clip=CLIP))
    same_weights(got, want)
    np.testing.assert_allclose(history.layer("grad_norm"), norms, rtol=1e-6)
    np.testing.assert_allclose(history.total("loss"), got.losses[1::2], rtol=1e-6)  # of the batch that stepped


def test_what_optimizers_returns_can_be_watched(tmp_path):
    net = Net()
    optimizer = net.configure_optimizers()
    with watch(net, LightningOptimizer(optimizer), tmp_path) as handle:
        net.loss(BATCHES[0]).backward()
        optimizer.step()
    assert len(open_history(handle.dir)) == 1


class Gan(L.LightningModule):
    """Two optimizers that take turns: the gradient that one leaves behind is not the other's."""

    def __init__(self, in_list=False):
        super().__init__()
        self.automatic_optimization = False
        if in_list:
            self.parts = nn.ModuleList([mlp(seed=1), mlp(seed=2)])
        else:
            self.G, self.D = mlp(seed=1), mlp(seed=2)

    def pair(self):
        return list(self.parts) if hasattr(self, "parts") else [self.G, self.D]

    def configure_optimizers(self):
        return [torch.optim.Adam(model.parameters(), lr=0.05) for model in self.pair()]

    def losses(self, x):
        generator, critic = self.pair()
        fake = nn.functional.pad(generator(x), (0, 3))
        yield 0, critic(fake).square().mean()
        yield 1, critic(x).square().mean() + critic(fake.detach()).sin().mean()

    def training_step(self, batch, batch_idx):
        for optimizer, (_, loss) in zip(self.optimizers(), self.losses(batch[0]), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss, retain_graph=True)
            optimizer.step()


def plain_gan(gan, clip, epochs):
    optimizers, norms = gan.configure_optimizers(), ([], [])
    for x, _ in BATCHES * epochs:
        for i, loss in gan.losses(x):
            optimizers[i].zero_grad()
            loss.backward(retain_graph=True)
            own = list(gan.pair()[i].parameters())
            norms[i].append([p.grad.norm().item() for p in own])
            nn.utils.clip_grad_norm_(own, clip)
            optimizers[i].step()
    return norms


@pytest.mark.parametrize(
    ("in_list", "layers"),
    [(False, ("G.0.weight", "D.0.weight")), (True, ("optimizer0.parts.0.0.weight", "optimizer1.parts.1.0.weight"))],
)
def test_several_optimizers_have_a_watch_each_in_one_run(in_list, layers, tmp_path):
    """An optimizer that trains a child module of its own is called after it."""
    want, got = Gan(in_list), Gan(in_list)
    norms = plain_gan(want, 0.1, epochs=2)
    callback = gradwatch(tmp_path, clip=CLIP)
    trainer(callback, max_epochs=2).fit(got, DATA)
    torch.testing.assert_close(got.state_dict(), want.state_dict(), rtol=1e-12, atol=1e-12)
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-Gan")
    for own, layer, wanted in zip(callback.watches, layers, norms, strict=True):
        history = open_history(own.dir)
        assert own.dir == folder / layer.split(".")[0]
        assert history.layers[0] == layer
        assert history.step.tolist() == list(range(16))
        np.testing.assert_allclose(history.layer("grad_norm"), wanted, rtol=1e-6)
    assert open_history(folder).run.status == "FINISHED"


def test_a_checkpoint_holds_every_watch(tmp_path):
    saved = ModelCheckpoint(tmp_path / "saved", filename="last")
    first, second = gradwatch(tmp_path, clip="AutoClip(50)"), gradwatch(tmp_path, clip="AutoClip(50)")
    trainer(first, saved, enable_checkpointing=True).fit(Gan(), DATA)
    trainer(second, max_epochs=2).fit(Gan(), DATA, ckpt_path=tmp_path / "saved" / "last.ckpt", weights_only=True)
    assert [w.dir for w in second.watches] == [w.dir.resolve() for w in first.watches]
    for own in second.watches:
        assert open_history(own.dir).step.tolist() == list(range(16))


# --------------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [(ValueError, ValueError, "FAILED"), (KeyboardInterrupt, SystemExit, "KILLED"), (SystemExit, SystemExit, "KILLED")],
)
def test_an_exception_ends_the_run(error, raised, status, tmp_path):
    class Failing(Net):
        def training_step(self, batch, batch_idx):
            if batch_idx == 5:
                raise error
            return super().training_step(batch, batch_idx)

    callback, handler = gradwatch(tmp_path), signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(raised):
            fit(Failing(), callback)
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning leaves it ignored
    history = open_history(callback.watch.dir)
    assert (history.run.status, len(history)) == (status, 5)


def test_a_fit_from_a_checkpoint_goes_on_where_it_was_saved(tmp_path):
    clip = "AutoClip(50)"
    whole = gradwatch(tmp_path, clip=clip)
    want = Net()
    fit(want, whole, max_epochs=4)

    saved = ModelCheckpoint(tmp_path / "saved", filename="{step}", save_top_k=-1)
    first, second = gradwatch(tmp_path, clip=clip), gradwatch(tmp_path, clip=clip)
    trainer(first, saved, enable_checkpointing=True, max_epochs=2, max_steps=13).fit(Net(), DATA)
    got = Net()
    trainer(second, max_epochs=4).fit(got, DATA, ckpt_path=tmp_path / "saved" / "step=8.ckpt", weights_only=True)

    same_weights(got, want, exactly=True)
    a, b = open_history(whole.watch.dir), open_history(second.watch.dir)
    assert second.watch.dir == first.watch.dir.resolve()
    assert b.step.tolist() == list(range(32))
    assert b.attempt.tolist() == [0] * 8 + [1] * 24
    for quantity in ("grad_norm", "clip_coef"):
        np.testing.assert_array_equal(a.layer(quantity), b.layer(quantity))
    np.testing.assert_array_equal(a.total("loss"), b.total("loss"))
    kept, resumed = whole.watch.state_dict()["policy_state"], second.watch.state_dict()["policy_state"]
    torch.testing.assert_close(resumed, kept, rtol=0, atol=0, equal_nan=True)


def test_a_second_fit_goes_on_and_another_trainer_begins_anew(tmp_path):
    callback, net = gradwatch(tmp_path, clip="AutoClip(50)"), Net()
    own = trainer(callback)
    own.fit(net, DATA)
    first = callback.watch
    own.fit_loop.max_epochs = 3
    own.fit(net, DATA, DATA)
    assert callback.watch is not first
    assert callback.watch.dir == first.dir.resolve()
    assert open_history(first.dir).step.tolist() == list(range(24))
    own.validate(net, DATA, verbose=False)  # no training: nothing to record, nothing to warn of

    trainer(callback).fit(Net(), DATA)
    assert callback.watch.dir != first.dir
    assert open_history(callback.watch.dir).step.tolist() == list(range(8))


# ------------------------------------------------------------------------------------------------------------ MLflow


def test_the_run_of_the_mlflow_logger_is_joined_wherever_it_is(store, tmp_path, monkeypatch):
    """The logger's store is neither the environment's nor the one that mlflow was told of last."""
    import mlflow

    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "elsewhere.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    logger = MLFlowLogger("mine", tracking_uri=elsewhere)
    callback = gradwatch(tmp_path, log="mlflow", delivery="none")
    try:
        assert logger.run_id
        mlflow.set_tracking_uri(store)
        trainer(callback, logger=logger, log_every_n_steps=1).fit(Net(), DATA, DATA)
    finally:
        mlflow.set_tracking_uri(None)
    assert Courier(callback.watch.dir).deliver().done
    client = mlflow.MlflowClient(elsewhere)
    run = client.get_run(logger.run_id)
    assert {"grad_norm/total", "loss", "val_loss", "train_loss_step"} <= set(run.data.metrics)
    assert run.data.params["gradwatch.clip"] == "None"
    assert len(client.search_runs([run.info.experiment_id])) == 1
    assert not mlflow.MlflowClient(store).search_runs(["0"])


# ------------------------------------------------------------------------------------------------- which Lightning


def load(name="gradwatch_adapter_again"):
    spec = importlib.util.spec_from_file_location(name, adapters.replace("__init__", "lightning"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_lightning_one_sentence_says_what_to_install(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'gradwatch\[lightning\]'"):
        load()


def test_pytorch_lightning_will_do(monkeypatch, tmp_path):
    pl = pytest.importorskip("pytorch_lightning")
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    callback = load().GradWatch(log=None, dir=tmp_path, verbose=False)
    assert isinstance(callback, pl.Callback)
