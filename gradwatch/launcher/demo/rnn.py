"""The demo's second training: a character RNN that diverges at a high learning rate unless its gradients are clipped.

Legend: T characters in a row, B rows of a batch, V characters of the alphabet.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradwatch
from gradwatch.launcher.demo.data import Text

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


def train(
    data: Text, *, lr: float, seed: int, steps: int, dir: Path, clip: str | None = None, renorm: str | None = None
) -> CharRNN:
    """Train with SGD on random pieces of the text; losses are in nats per character."""
    torch.manual_seed(seed)
    model = CharRNN(len(data.alphabet))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    text, validation = torch.from_numpy(data.train), rows(torch.from_numpy(data.validation))

    with gradwatch.watch(
        model,
        optimizer,
        clip=clip,
        renorm=renorm,
        total_steps=steps,
        dir=dir,
        run_name=f"rnn-{clip or renorm or 'none'}-lr{lr:g}-seed{seed}",
        params={"workload": "rnn", "data": data.name, "lr": lr, "batch_size": BATCH, "length": LENGTH, "seed": seed},
        delivery="none",
        verbose=False,
    ) as watch:
        for step in range(steps):
            starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1))
            piece = text[starts + torch.arange(LENGTH + 1)]
            loss = next_character_loss(model(piece[:, :-1]), piece[:, 1:])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            watch.log(loss=loss)

            if (step + 1) % max(1, steps // EVALUATIONS) == 0:
                val_loss, val_accuracy = evaluate(model, validation)
                watch.log(val_loss=val_loss, val_accuracy=val_accuracy)
    return model


def rows(text: Tensor) -> Tensor:
    """The beginning of a text as rows of `LENGTH + 1` characters, at most `VALIDATION_ROWS` of them."""
    count = min(VALIDATION_ROWS, len(text) // (LENGTH + 1))
    return text[: count * (LENGTH + 1)].view(count, LENGTH + 1)


def next_character_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per character, 0-d, of logits `[B, T, V]`."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: CharRNN, validation: Tensor) -> tuple[Tensor, Tensor]:
    """Loss in nats per character and accuracy on `[B, T + 1]` characters, both 0-d."""
    logits, targets = model(validation[:, :-1]), validation[:, 1:]
    return next_character_loss(logits, targets), (logits.argmax(dim=2) == targets).float().mean()
