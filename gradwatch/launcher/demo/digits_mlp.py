"""The demo's first training, as anybody might have written it: an MLP that learns to read digits, with SGD.

Legend: N examples, B examples of a batch, D inputs of an example.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import gradwatch
from gradwatch.launcher.demo.data import Images, load_images

BATCH = 50


def build(inputs: int) -> nn.Sequential:
    """The network: ReLU, He initialisation."""
    model = nn.Sequential(nn.Linear(inputs, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def train(model: nn.Module, optimizer: Optimizer, data: Images, epochs: int) -> None:
    """Train in batches of 50."""
    inputs, labels = torch.from_numpy(data.train), torch.from_numpy(data.train_labels)
    for _ in range(epochs):
        correct = torch.zeros(())
        for batch in torch.split(torch.randperm(len(inputs)), BATCH):
            logits = model(inputs[batch])
            loss = F.cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            correct += (logits.argmax(dim=1) == labels[batch]).sum()

        test_loss, test_accuracy = evaluate(model, data)
        gradwatch.log(train_accuracy=correct / len(inputs), test_accuracy=test_accuracy, test_loss=test_loss)


@torch.no_grad()
def evaluate(model: nn.Module, data: Images) -> tuple[Tensor, Tensor]:
    """Mean loss and accuracy on the test images, both 0-d."""
    logits, labels = model(torch.from_numpy(data.test)), torch.from_numpy(data.test_labels)
    return F.cross_entropy(logits, labels), (logits.argmax(dim=1) == labels).float().mean()


def main() -> None:
    """Train as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--data", type=Path, help="a folder with MNIST's four idx files")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = load_images(args.data)
    model = build(data.train.shape[1])
    train(model, torch.optim.SGD(model.parameters(), lr=args.lr), data, args.epochs)


if __name__ == "__main__":
    main()
