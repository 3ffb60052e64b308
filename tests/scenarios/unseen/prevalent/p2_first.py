"""A bank, a museum, fire engines, birds and baggage: statements, damp halls, hydrants, calls, tickets, X-rays."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, judged, now_and_then, rounds, tend


# 2 of the list
@sick("softmax-twice", where="the end of the model and the loss, all steps",
      cure="leave the softmax to the loss: the model gives logits")  # fmt: skip
def lines_of_a_bank_statement_into_categories(folder, ill):
    seeded(14200)
    categories, words, length = 24, 300, 12
    favourites = torch.randint(words, (categories, 10))

    def statements(rows):
        kind = torch.randint(categories, (rows,))
        typical = favourites[kind].gather(1, torch.randint(10, (rows, length)))
        anything = torch.randint(words, (rows, length))
        return torch.where(torch.rand(rows, length) < 0.55, typical, anything), kind

    (x, y), (tx, ty) = statements(6000), statements(2000)
    draw = rounds(64, x, y)
    layers = [nn.EmbeddingBag(words, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, categories)]
    net = nn.Sequential(*layers, *([nn.Softmax(dim=1)] if ill else []))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def loss_of(step):
        line, kind = draw()
        said = net(line)
        return F.cross_entropy(said, kind), {"accuracy": float((said.argmax(1) == kind).float().mean())}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 500, score=score)


# 3 of the list
@sick("lr-too-high", "update-too-large", where="all weights, all steps",
      cure="Adam at 2e-3, a fiftieth of its rate")  # fmt: skip
def humidity_of_a_painting_hall_six_hours_ahead(folder, ill):
    seeded(14201)
    hours = torch.arange(42.0)

    def days(rows):
        phase, swing, drift = 6.2832 * torch.rand(rows, 1), 0.5 + torch.rand(rows, 1), torch.randn(rows, 1)
        wave = swing * (6.2832 * hours / 24 + phase).sin() + 0.3 * drift * (hours / 12 - 1.75)
        visitors = (torch.rand(rows, 42) < 0.15).float()
        damp = wave + 0.5 * visitors + 0.05 * torch.randn(rows, 42)
        return torch.stack([damp, visitors], 2)[:, :36], wave[:, 41:]

    class Forecast(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.place = nn.Linear(2, 24), nn.Parameter(0.1 * torch.randn(36, 24))
            self.layers = nn.Sequential(
                *(nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True) for _ in range(2))
            )
            self.head = nn.Linear(24, 1)

        def forward(self, x):
            return self.head(self.layers(self.embed(x) + self.place).mean(1))

    (x, y), (tx, ty) = days(3000), days(300)
    draw = rounds(32, x, y)
    net = Forecast()
    optimizer = torch.optim.Adam(net.parameters(), 0.1 if ill else 2e-3)
    validate = now_and_then(net, 30, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        past, ahead = draw()
        return F.mse_loss(net(past), ahead), validate(step)

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


# 5 of the list
@sick("targets-not-normalised", where="the output and the targets, all steps",
      cure="standardise the litres by the mean and spread of the training rows")  # fmt: skip
def litres_of_water_that_a_fire_will_take(folder, ill):
    seeded(14202)
    way = torch.randn(9, 3) / 3

    def fires(rows):
        x = torch.randn(rows, 9)
        seen = x @ way
        size = 1.2 * seen[:, 0] + seen[:, 1].tanh() + 0.7 * seen[:, 2].square() + 0.1 * torch.randn(rows)
        return x, (4000 + 1500 * size).clamp(min=200).unsqueeze(1)

    (x, y), (tx, ty) = fires(3000), fires(1000)
    middle, spread = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(50, x, y)
    net = dense(9, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        fire, litres = draw()
        said = net(fire)
        off = (said.detach() * spread + middle - litres).abs().mean()
        return F.mse_loss(said, (litres - middle) / spread), {"mae_litres": float(off)}

    score = held_out(net, lambda: (net(tx) * spread + middle - ty).square().mean().sqrt())
    return fit(folder, net, optimizer, loss_of, 480, score=score)


# 8 of the list
@sick("left-in-eval", where="batch norms and dropouts, from the first validation on",
      cure="net.train() after each validation")  # fmt: skip
def six_warblers_by_their_calls(folder, ill):
    seeded(14203)
    time = torch.linspace(0, 1, 128)
    pitch, slope = 6 + torch.arange(6.0), 4 * torch.rand(6)

    def calls(rows):
        bird = torch.randint(6, (rows,))
        start = 0.4 * torch.rand(rows, 1)
        after = (time - start).clamp(min=0)
        tone = (6.2832 * (pitch[bird, None] * after + slope[bird, None] * after.square())).sin()
        envelope = (after * 8).clamp(max=1) * (-3 * after).exp()
        return (tone * envelope * 2 + 0.5 * torch.randn(rows, 128)).unsqueeze(1), bird

    (x, y), (vx, vy), (tx, ty) = calls(1280), calls(300), calls(800)
    draw = rounds(32, x, y)

    def block(before, after, stride):
        return [nn.Conv1d(before, after, 5, stride, 2, bias=False), nn.BatchNorm1d(after), nn.ReLU()]

    net = nn.Sequential(
        *block(1, 16, 2), *block(16, 24, 2), *block(24, 24, 1), *block(24, 32, 2), *block(32, 32, 1), nn.Dropout(0.3),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(128, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(vx)
        if not ill:
            net.train()
        right = (said.argmax(1) == vy).float().mean()
        return {"val_loss": float(F.cross_entropy(said, vy)), "val_accuracy": float(right)}

    def loss_of(step):
        call, bird = draw()
        loss = F.cross_entropy(net(call), bird)
        return loss, validate() if step % 40 == 39 else {}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# 9 of the list
@sick("not-in-optimizer", where="the new head, all steps",
      cure="make the optimizer once the head has been replaced")  # fmt: skip
def cloakroom_tickets_of_the_new_wing(folder, ill):
    seeded(14204)
    bunch = load_digits()
    x, y = (torch.tensor(bunch.data).float() / 16 - 0.3) / 0.38, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    old, new = y < 4, y >= 4
    net = nn.ModuleDict({"body": nn.Sequential(dense(64, 64, 32), nn.ReLU()), "head": nn.Linear(32, 4)})

    def forward(image):
        return net["head"](net["body"](image))

    before = rounds(32, x[old], y[old])
    early = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(60):
        image, ticket = before()
        early.zero_grad()
        F.cross_entropy(forward(image), ticket).backward()
        early.step()

    def tuned():
        groups = [{"params": net["body"].parameters(), "lr": 1e-4}, {"params": net["head"].parameters()}]
        return torch.optim.Adam(groups, 3e-3)

    optimizer = tuned()
    net["head"] = nn.Linear(32, 6)
    if not ill:
        optimizer = tuned()
    x, y = x[new], y[new] - 4
    draw = rounds(32, x[:800], y[:800])

    def error():
        return F.cross_entropy(forward(x[800:]), y[800:])

    validate = now_and_then(net, 25, lambda: {"val_loss": error()})

    def one(step):
        image, ticket = draw()
        said = forward(image)
        loss = F.cross_entropy(said, ticket)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "accuracy": float((said.argmax(1) == ticket).float().mean()), **validate(step)}

    return tend(folder, net, optimizer, one, 150, held_out(net, error))


# 19 of the list
@sick("data-not-shuffled", where="the loader: each batch holds one class, all steps",
      cure="shuffle=True in the loader")  # fmt: skip
def forbidden_things_in_baggage_by_x_ray(folder, ill):
    seeded(14205)
    shapes = torch.randn(6, 1, 5, 5)

    def scans(kind):
        image = 0.7 * torch.randn(len(kind), 1, 12, 12)
        for row, (top, left) in enumerate(torch.randint(8, (len(kind), 2)).tolist()):
            image[row, :, top : top + 5, left : left + 5] += shapes[kind[row]]
        return image, kind

    (x, y), (tx, ty) = scans(torch.arange(6).repeat_interleave(160)), scans(torch.randint(6, (600,)))
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=not ill)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(2),
        nn.Flatten(), nn.Linear(96, 6),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def epochs():
        while True:
            yield from loader

    batches = epochs()

    def loss_of(step):
        scan, thing = next(batches)
        return F.cross_entropy(net(scan), thing), validate(step)

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
