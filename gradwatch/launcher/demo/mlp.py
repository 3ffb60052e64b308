"""The demo's first training: a 784-300-100-10 MLP that learns to read digits, with SGD and a checkpoint.

Legend: N examples, B examples of a batch, D inputs of an example.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import gradwatch
from gradwatch.launcher.demo.data import Images

BATCH = 50


def build(inputs: int) -> nn.Sequential:
    """The network: ReLU, He initialisation."""
    model = nn.Sequential(nn.Linear(inputs, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def train(
    data: Images,
    *,
    lr: float,
    seed: int,
    epochs: int,
    dir: Path,
    clip: str | None = None,
    renorm: str | None = None,
    resume: Path | None = None,
) -> nn.Sequential:
    """Train with SGD, batches of 50; returns the model as it was after its best epoch (lowest training loss).

    The best epoch is kept in the run's folder as `checkpoint.pt`; `resume` goes on from such a file.
    """
    torch.manual_seed(seed)
    model = build(data.train.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    inputs, labels = torch.from_numpy(data.train), torch.from_numpy(data.train_labels)
    first, best_loss = 0, float("inf")

    with gradwatch.watch(
        model,
        optimizer,
        clip=clip,
        renorm=renorm,
        total_steps=epochs * -(-len(inputs) // BATCH),
        dir=dir,
        run_name=f"mlp-{clip or renorm or 'none'}-lr{lr:g}-seed{seed}",
        params={"workload": "mlp", "data": data.name, "lr": lr, "batch_size": BATCH, "epochs": epochs, "seed": seed},
        delivery="none",
        verbose=False,
    ) as watch:
        if resume is not None:
            first, best_loss = restore(resume, model, optimizer, watch)

        for epoch in range(first, epochs):
            total_loss, correct = torch.zeros(()), torch.zeros(())
            for batch in torch.split(torch.randperm(len(inputs)), BATCH):
                logits = model(inputs[batch])
                loss = F.cross_entropy(logits, labels[batch])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                watch.log(loss=loss)
                total_loss += loss.detach() * len(batch)
                correct += (logits.argmax(dim=1) == labels[batch]).sum()

            test_loss, test_accuracy = evaluate(model, data)
            watch.log(train_accuracy=correct / len(inputs), test_accuracy=test_accuracy, test_loss=test_loss)
            if epoch == 0 or total_loss < best_loss:
                best_loss = float(total_loss)
                save(watch.dir / "checkpoint.pt", epoch + 1, best_loss, model, optimizer, watch)

    model.load_state_dict(torch.load(watch.dir / "checkpoint.pt", weights_only=True)["model"])
    return model


def save(path: Path, epochs: int, loss: float, model: nn.Module, optimizer: Optimizer, watch: gradwatch.Watch) -> None:
    """Everything that is needed to go on after this epoch as if nothing had happened."""
    torch.save(
        {
            "epochs": epochs,
            "loss": loss,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "watch": watch.state_dict(),
            "random": torch.get_rng_state(),
        },
        path,
    )


def restore(path: Path, model: nn.Module, optimizer: Optimizer, watch: gradwatch.Watch) -> tuple[int, float]:
    """Put everything back as it was saved; returns the number of epochs done and the last one's loss."""
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    watch.load_state_dict(checkpoint["watch"])
    torch.set_rng_state(checkpoint["random"])
    return checkpoint["epochs"], checkpoint["loss"]


@torch.no_grad()
def evaluate(model: nn.Module, data: Images) -> tuple[Tensor, Tensor]:
    """Mean loss and accuracy on the test images, both 0-d."""
    logits, labels = model(torch.from_numpy(data.test)), torch.from_numpy(data.test_labels)
    return F.cross_entropy(logits, labels), (logits.argmax(dim=1) == labels).float().mean()
