"""A character RNN on a text file: a plain training script that knows nothing of gradwatch.

gradwatch sweep --clip none --clip 'ClipByGlobalNorm(1.0)' --seed 0 --seed 1 --seed 2 char_rnn.py --seed {seed}
"""

import argparse
import pydoc_data.topics
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="a text; by default the help texts that come with Python")
parser.add_argument("--lr", type=float, default=3.0)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

BATCH, LENGTH, HIDDEN = 32, 64, 256


class CharRNN(nn.Module):
    """Embedding, one tanh RNN, and a linear layer that guesses the next character."""

    def __init__(self, alphabet):
        super().__init__()
        self.embed = nn.Embedding(alphabet, HIDDEN)
        self.rnn = nn.RNN(HIDDEN, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, alphabet)

    def forward(self, characters):
        states, _ = self.rnn(self.embed(characters))
        return self.head(states)


def loss_of(model, pieces):
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


if args.data:
    text = args.data.read_text(encoding="utf-8")
else:
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore").decode()
places = {character: i for i, character in enumerate(sorted(set(text)))}
numbers = torch.tensor([places[character] for character in text])
training, validation = numbers[: len(numbers) * 9 // 10], numbers[len(numbers) * 9 // 10 :]
rows = min(256, len(validation) // (LENGTH + 1))
validation = validation[: rows * (LENGTH + 1)].view(rows, LENGTH + 1)

torch.manual_seed(args.seed)
model = CharRNN(len(places))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(1, args.steps + 1):
    starts = torch.randint(len(training) - LENGTH - 1, (BATCH, 1))
    loss = loss_of(model, training[starts + torch.arange(LENGTH + 1)])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % max(1, args.steps // 6) == 0:
        with torch.no_grad():
            print(f"step {step}: val_loss {loss_of(model, validation).item():.4f}", flush=True)
