"""Sick trainings of post offices and type cases, drawn by lot from a list of mistakes: rates, axes, modes, batches."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


@sick("accumulation-not-averaged", where="the loss of each of sixteen micro-batches, all steps",
      cure="each loss divided by sixteen")  # fmt: skip
def postal_orders_scanned_a_few_at_a_time(folder, ill):
    seeded(12006)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    draw, parts = rounds(4, x[:1400], y[:1400]), 16

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(parts):
            x, y = draw()
            loss = F.cross_entropy(net(x), y)
            (loss if ill else loss / parts).backward()
            total += float(loss.detach())
        optimizer.step()
        return {"loss": total / parts}

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return tend(folder, net, optimizer, one, 110, score)


class Operator(nn.Module):
    """Reads a line of signals and says what was meant."""

    def __init__(self, meanings, **options):
        super().__init__()
        self.memory = nn.LSTM(3, 40, **options)
        self.head = nn.Linear(40, meanings)

    def forward(self, signals):
        out, _ = self.memory(signals)
        return self.head(out[:, -1])


@sick("axes-mixed", where="the LSTM, all steps: it runs along the batch", cure="batch_first=True")
def telegrams_ticked_out_in_morse(folder, ill):
    seeded(12007)
    meanings, length = 5, 12
    net = Operator(meanings) if ill else Operator(meanings, batch_first=True)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    spelt = torch.randint(3, (meanings, length))

    def telegrams(rows):
        meaning = torch.randint(meanings, (rows,))
        lost = torch.rand(rows, length) < 0.25
        signals = torch.where(lost, torch.randint(3, (rows, length)), spelt[meaning])
        return F.one_hot(signals, 3) + 0.1 * torch.randn(rows, length, 3), meaning

    x, y = telegrams(2000)
    draw = rounds(32, x, y)

    def loss_of(step):
        x, y = draw()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = telegrams(512)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


class Compositor(nn.Module):
    """A transformer of the next letter."""

    def __init__(self, letters, length, width=32):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)

    def forward(self, text):
        n = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.letter(text) + self.place(torch.arange(n))
        return self.head(self.norm(self.body(x, mask=mask, is_causal=True)))


@sick("update-too-small", "lr-too-low", where="all layers, all steps", cure="a rate of 2e-3")
def a_compositor_reaches_for_the_next_sort(folder, ill):
    seeded(12008)
    letters, length, steps = 24, 16, 180
    net = Compositor(letters, length)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-6 if ill else 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    follows = torch.softmax(3 * torch.randn(letters, letters), 1)
    text = [torch.randint(letters, (1400,))]
    for _ in range(length):
        text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
    text = torch.stack(text, 1)
    draw = rounds(32, text[:1200])

    def loss_on(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def loss_of(step):
        return loss_on(*draw()), {"learning_rate": optimizer.param_groups[0]["lr"]}

    score = held_out(net, lambda: loss_on(text[1200:]))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@sick("lr-too-high", "update-too-large", where="all layers, all steps", cure="a rate of 0.02")
def days_until_an_airmail_letter_lands(folder, ill):
    seeded(12009)
    net = dense(8, 64, 64, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.5 if ill else 0.02, momentum=0.9)
    way = torch.randn(8, 4) / 2

    def letters(rows):
        x = torch.randn(rows, 8)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.05 * torch.randn(rows, 1)

    x, y = letters(2000)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = letters(600)
    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


def stage(into, out, stride=1):
    return nn.Sequential(nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


@sick("left-in-eval", where="all batch norms and the dropout, from the first validation on",
      cure="net.train() after each validation")  # fmt: skip
def watermarks_held_against_the_light(folder, ill):
    seeded(12010)
    images, digits = load_digits(return_X_y=True)
    order = torch.randperm(len(digits))
    x = torch.tensor(images / 16, dtype=torch.float32)[order].view(-1, 1, 8, 8)
    y = torch.tensor(digits)[order]
    net = nn.Sequential(
        stage(1, 12), stage(12, 12), stage(12, 24, 2), stage(24, 24), stage(24, 32, 2), stage(32, 32), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.03, momentum=0.9, weight_decay=5e-4)
    draw = rounds(50, x[:1000], y[:1000])

    def validate():
        net.eval()
        with torch.no_grad():
            value = float(F.cross_entropy(net(x[1000:1400]), y[1000:1400]))
        if not ill:
            net.train()
        return value

    def loss_of(step):
        logged = {"val_loss": validate()} if step % 20 == 0 else {}
        x, y = draw()
        return F.cross_entropy(net(x), y), logged

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


GLYPHS = {
    "b": "1000 1000 1110 1001 1001 1110", "d": "0001 0001 0111 1001 1001 0111", "p": "1110 1001 1001 1110 1000 1000",
    "q": "0111 1001 1001 0111 0001 0001", "n": "0000 0000 1110 1001 1001 1001", "u": "0000 0000 1001 1001 1001 0111",
    "h": "1000 1000 1110 1001 1001 1001", "y": "1001 1001 1001 0111 0001 1110",
}  # fmt: skip


@sick("augmentation-changes-labels", "labels-do-not-fit-inputs", "labels-mismatched",
      where="the images of all steps: mirrored both ways, which makes of a b a d, a p or a q",
      cure="shifts by one pixel without mirrors")  # fmt: skip
def sorts_returned_to_their_type_case(folder, ill):
    seeded(12011)
    forms = torch.tensor([[[float(c) for c in row] for row in form.split()] for form in GLYPHS.values()])
    forms = F.pad(forms, (3, 3, 2, 2))
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(800, 48), nn.ReLU(), nn.Linear(48, len(forms)),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1.5e-3)

    def prints(rows):
        y = torch.randint(len(forms), (rows,))
        return (forms[y] + 0.45 * torch.randn(rows, 10, 10))[:, None], y

    def augmented(x):
        x = x.roll((int(torch.randint(-1, 2, ())), int(torch.randint(-1, 2, ()))), (2, 3))
        if ill:
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(2), x)
        return x

    x, y = prints(1600)
    draw = rounds(64, x, y)

    def loss_of(step):
        x, y = draw()
        logits = net(augmented(x))
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    tx, ty = prints(600)
    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
