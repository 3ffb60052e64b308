"""The demo's second training: a character RNN that diverges at a high learning rate unless its gradients are clipped.

Legend: T characters in a row, B rows of a batch, V characters of the alphabet.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import gradwatch
from gradwatch.launcher.demo.data import Text, load_text

BATCH, LENGTH = 32, 64
VALIDATION_ROWS = 256
EVALUATIONS = 6  # in a run


class CharRNN(nn.Module):
    """Embedding, one tanh RNN, and a linear layer that guesses the next character."""

    def __init__(self, alphabet: int, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(alphabet, hidden)
        self.rnn = nn.RNN(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, alphabet)

    def forward(self, characters: Tensor) -> Tensor:
        """`[B, T]` characters to `[B, T, V]` logits of the next one."""
        states, _ = self.rnn(self.embed(characters))
        return self.head(states)  # type: ignore[no-any-return]


def train(model: nn.Module, optimizer: Optimizer, data: Text, steps: int) -> None:
    """Train on random pieces of the text; losses are in nats per character."""
    text, validation = torch.from_numpy(data.train), rows(torch.from_numpy(data.validation))
    for step in range(steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1))
        piece = text[starts + torch.arange(LENGTH + 1)]
        loss = next_character_loss(model(piece[:, :-1]), piece[:, 1:])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        if (step + 1) % max(1, steps // EVALUATIONS) == 0:
            val_loss, val_accuracy = evaluate(model, validation)
            gradwatch.log(val_loss=val_loss, val_accuracy=val_accuracy)


def rows(text: Tensor) -> Tensor:
    """The beginning of a text as rows of `LENGTH + 1` characters, at most `VALIDATION_ROWS` of them."""
    count = min(VALIDATION_ROWS, len(text) // (LENGTH + 1))
    return text[: count * (LENGTH + 1)].view(count, LENGTH + 1)


def next_character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per character, 0-d, of logits `[B, T, V]`."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, validation: Tensor) -> tuple[Tensor, Tensor]:
    """Loss in nats per character and accuracy on `[B, T + 1]` characters, both 0-d."""
    logits, targets = model(validation[:, :-1]), validation[:, 1:]
    return next_character_loss(logits, targets), (logits.argmax(dim=2) == targets).float().mean()


def main() -> None:
    """Train as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--data", type=Path, help="a folder with a text in input.txt")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    data = load_text(args.data)
    model = CharRNN(len(data.alphabet))
    train(model, torch.optim.SGD(model.parameters(), lr=args.lr), data, args.steps)


if __name__ == "__main__":
    main()
