"""Healthy trainings of clocks, looms and weavers: what a course or a team's repository has."""

from __future__ import annotations

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, now_and_then, rounds


def shuffled(load, scale):
    """A table [N, columns] and its targets in a drawn order, columns normalised by their first `scale` rows."""
    table, y = load(return_X_y=True)
    order = torch.randperm(len(y))
    x = torch.tensor(table, dtype=torch.float32)[order]
    return (x - x[:scale].mean(0)) / (x[:scale].std(0) + 1e-6), torch.tensor(y)[order]


def digits():
    """Images [N, 1, 8, 8] between -1 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 8 - 1, dtype=torch.float32).view(-1, 1, 8, 8)[order], torch.tensor(shown)[order]


@healthy()
def enamel_dials_with_painted_figures(folder):
    seeded(12750)
    x, y = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    steps = 200
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = rounds(50, x[:1400], y[:1400])

    def measure():
        logits = net(x[1400:])
        accuracy = (logits.argmax(1) == y[1400:]).float().mean()
        return {"val_loss": F.cross_entropy(logits, y[1400:]), "val_accuracy": accuracy}

    validate = now_and_then(net, 28, measure)

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by), validate(step)

    score = held_out(net, lambda: measure()["val_loss"])
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


@healthy()
def bolts_of_linen_passed_or_returned(folder):
    seeded(12751)
    x, y = shuffled(load_breast_cancer, 420)
    y = y.float()
    net = nn.Sequential(nn.Linear(30, 48), nn.SiLU(), nn.Dropout(0.1), nn.Linear(48, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    weight = (y[:420] == 0).sum() / (y[:420] == 1).sum()
    draw = rounds(42, x[:420], y[:420])

    def loss_of(step):
        bx, by = draw()
        return F.binary_cross_entropy_with_logits(net(bx)[:, 0], by, pos_weight=weight)

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x[420:])[:, 0], y[420:]))
    return fit(folder, net, optimizer, loss_of, 180, score=score)


@healthy()
def three_dye_plants_by_their_petals(folder):
    seeded(12752)
    x, y = shuffled(load_iris, 120)
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    draw = rounds(20, x[:120], y[:120])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    return fit(
        folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: F.cross_entropy(net(x[120:]), y[120:]))
    )


class Order(nn.Module):
    """A class of a sequence of its own length, by an LSTM over what is packed."""

    def __init__(self, kinds, width, classes):
        super().__init__()
        self.token = nn.Embedding(kinds, 16, padding_idx=0)
        self.memory = nn.LSTM(16, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.token(tokens), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.memory(packed)[1][0][-1])


@healthy()
def order_slips_sent_to_the_right_weaver(folder):
    seeded(12753)
    kinds, length, classes = 25, 15, 5
    net = Order(kinds, 32, classes)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    habit = torch.softmax(1.3 * torch.randn(classes, kinds - 1), 1)

    def slips(rows):
        y = torch.randint(classes, (rows,))
        lengths = torch.randint(5, length + 1, (rows,))
        tokens = 1 + torch.multinomial(habit[y], length, replacement=True)
        return tokens.masked_fill(torch.arange(length) >= lengths[:, None], 0), lengths, y

    draw = rounds(32, *slips(2000))
    tokens, lengths, y = slips(400)

    def measure():
        return {"val_accuracy": (net(tokens, lengths).argmax(1) == y).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        t, n, by = draw()
        return F.cross_entropy(net(t, n), by), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(tokens, lengths), y))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 5.0))


class Flaw(nn.Module):
    """A mask of an image, with one skip over the middle."""

    def __init__(self, width):
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU())
        self.deep = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 2, 2),
        )  # fmt: skip
        self.out = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 1, 1)
        )  # fmt: skip

    def forward(self, image):
        x = self.enter(image)
        return self.out(torch.cat([x, self.deep(x)], 1))


@healthy()
def snags_outlined_on_the_inspection_table(folder):
    seeded(12754)
    net = Flaw(8)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    grid = torch.linspace(-1, 1, 16)

    def cloths(rows):
        middle, size = 1.4 * torch.rand(rows, 2, 1, 1) - 0.7, 0.2 + 0.2 * torch.rand(rows, 2, 1, 1)
        mask = ((grid[:, None] - middle[:, 0]) / size[:, 0]) ** 2 + ((grid - middle[:, 1]) / size[:, 1]) ** 2 < 1
        weave = (25 * grid).sin() * (25 * grid[:, None]).sin()
        return (weave + 1.2 * mask + 0.4 * torch.randn(rows, 16, 16))[:, None], mask.float()[:, None]

    def loss_on(image, mask):
        logits = net(image)
        share = logits.sigmoid()
        dice = 1 - (2 * (share * mask).sum() + 1) / (share.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice

    draw = rounds(16, *cloths(600))
    test = cloths(100)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 180, score=score)


class Sketch(nn.Module):
    """A variational autoencoder."""

    def __init__(self, size, hidden, code):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 2 * code))
        self.draw = nn.Sequential(nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, size))

    def forward(self, x):
        middle, log = self.see(x).chunk(2, 1)
        code = middle + (0.5 * log).exp() * torch.randn_like(middle)
        return self.draw(code), 0.5 * (middle**2 + log.exp() - log - 1).sum(1).mean()


@healthy(0.2)
def figures_sketched_for_a_tapestry(folder):
    seeded(12755)
    x = digits()[0].flatten(1) / 2 + 0.5
    net = Sketch(64, 128, 8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def losses(x):
        logits, divergence = net(x)
        return F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean(), divergence

    def loss_of(step):
        rebuilt, divergence = losses(*draw())
        return rebuilt + divergence, {"reconstruction": rebuilt, "kl": divergence}

    score = held_out(net, lambda: sum(losses(x[1500:])))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


class Backwards(nn.Module):
    """A sequence from a sequence: a GRU reads, another one writes and looks back at what was read."""

    def __init__(self, kinds, width):
        super().__init__()
        self.token = nn.Embedding(kinds + 1, width)
        self.read = nn.GRU(width, width, batch_first=True)
        self.write = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(2 * width, kinds)

    def forward(self, given, before):
        read, state = self.read(self.token(given))
        written, _ = self.write(self.token(before), state)
        look = (written @ read.transpose(1, 2) / read.shape[2] ** 0.5).softmax(2) @ read
        return self.out(torch.cat([written, look], 2))


@healthy()
def the_weft_undone_row_by_row(folder):
    seeded(12756)
    kinds, length = 8, 6
    net = Backwards(kinds, 48)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_on(given):
        wanted = given.flip(1)
        before = torch.cat([torch.full((len(given), 1), kinds), wanted[:, :-1]], 1)
        return F.cross_entropy(net(given, before).flatten(0, 1), wanted.flatten())

    test = torch.randint(kinds, (256, length))
    draw = rounds(48, torch.randint(kinds, (4000, length)))
    validate = now_and_then(net, 50, lambda: {"val_loss": loss_on(test)})

    def loss_of(step):
        return loss_on(*draw()), validate(step)

    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 1.0))


@healthy()
def an_apprentice_takes_over_the_workshop(folder):
    seeded(12757)
    x, y = digits()
    x = x.flatten(1)
    body, head = dense(64, 96, 48), nn.Linear(48, 10)
    before = torch.optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    few = y < 5
    earlier = rounds(64, x[:1000][few[:1000]], y[:1000][few[:1000]])
    for _ in range(120):
        bx, by = earlier()
        before.zero_grad()
        F.cross_entropy(head(body(bx).relu()), by).backward()
        before.step()
    net = nn.Sequential(body, nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 3e-4}, {"params": net[2].parameters(), "lr": 3e-3}], weight_decay=0.01
    )
    draw = rounds(40, x[1000:1400], y[1000:1400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 200, score=score)


@healthy(0.2)
def weavers_health_a_year_later(folder):
    seeded(12758)
    x, y = shuffled(load_diabetes, 350)
    y = y.float()[:, None]
    y = (y - y[:350].mean()) / y[:350].std()
    net = dense(10, 32, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    draw = rounds(35, x[:350], y[:350])

    def loss_of(step):
        bx, by = draw()
        return F.mse_loss(net(bx), by), {"lr": optimizer.param_groups[0]["lr"]}

    score = held_out(net, lambda: F.mse_loss(net(x[350:]), y[350:]))

    def after_step(step):
        if step % 10 == 9:
            schedule.step(score())

    return fit(folder, net, optimizer, loss_of, 150, score=score, after_step=after_step)


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self, width, classes):
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, image):
        return self.head(self.body(self.patch(image).flatten(2).transpose(1, 2) + self.place).mean(1))


@healthy()
def serial_numbers_under_the_movement(folder):
    seeded(12759)
    x, y = digits()
    net = Patches(32, 10)
    steps, parts = 140, 2
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=15)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 15)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [15])
    draw = rounds(32, x[:1400], y[:1400])

    def loss_of(step):
        bx, by = draw()
        return F.cross_entropy(net(bx), by) / parts

    return fit(
        folder, net, optimizer, loss_of, steps, accumulate=parts, schedule=schedule, before_step=clipped(net, 1.0),
        score=held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:])),
    )  # fmt: skip
