"""More work of the five houses: groomed slopes, fog horns, woven patterns, pill photographs, lift passes, articles."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


# 18 of the list
@sick("schedule-too-short", "schedule-stepped-per-batch", where="the learning rate, from about step 60 on",
      cure="step the schedule at the end of each epoch")  # fmt: skip
def hours_until_the_slope_is_groomed_again(folder, ill):
    seeded(14906)
    way = torch.randn(8, 5) / 8**0.5

    def evenings(rows):
        x = torch.randn(rows, 8)
        y = (2 * (x @ way)).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)
        return x, (y - y.mean()) / y.std()

    (x, y), (tx, ty) = evenings(1600), evenings(800)
    draw, per_epoch = rounds(64, x, y), 25
    net = dense(8, 96, 96, 1, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    validate = now_and_then(net, per_epoch, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def one(step):
        evening, hours = draw()
        loss = F.mse_loss(net(evening), hours)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if ill or step % per_epoch == per_epoch - 1:
            schedule.step()
        return {"loss": loss, "lr": optimizer.param_groups[0]["lr"], **validate(step)}

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return tend(folder, net, optimizer, one, 500, score)


class Listener(nn.Module):
    """An encoder of sound, and a head that names what sounded."""

    def __init__(self, kinds, keep):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 24, 7, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(24, kinds)
        self.keep = keep

    def forward(self, sound):
        features = self.encoder(sound)
        return self.head(features if self.keep else features.detach())


# 24 of the list
@sick("no-gradient", "encoder-detached", where="encoder, all steps", cure="no detach() between encoder and head")
def fog_horns_told_apart_by_their_sound(folder, ill):
    seeded(14907)
    time = torch.arange(96) / 96
    pitches = torch.tensor([[6.0, 9.0], [6.0, 13.0], [9.0, 13.0], [9.0, 17.0], [13.0, 17.0], [6.0, 17.0]])

    def blasts(rows):
        horn = torch.randint(6, (rows,))
        phase = 6.2832 * torch.rand(rows, 2, 1)
        sound = (6.2832 * pitches[horn][:, :, None] * time + phase).sin().sum(1, keepdim=True)
        return (sound + 0.5 * torch.randn(rows, 1, 96)) / 1.1, horn

    (x, y), (tx, ty) = blasts(4000), blasts(800)
    draw = rounds(64, x, y)
    net = Listener(6, keep=not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    validate = now_and_then(net, 60, judged(net, tx, ty))

    def loss_of(step):
        sound, horn = draw()
        said = net(sound)
        right = (said.argmax(1) == horn).float().mean()
        return F.cross_entropy(said, horn), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 360, score=score)


class PatternBook(nn.Module):
    """A variational autoencoder of patterns."""

    def __init__(self, size, codes):
        super().__init__()
        self.encoder = dense(size, 96, 2 * codes)
        self.decoder = dense(codes, 96, size)

    def forward(self, pattern):
        mean, log_var = self.encoder(pattern).chunk(2, 1)
        code = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        return self.decoder(code), mean, log_var


# 28 of the list
@sick("posterior-collapse", "kl-weight-too-high", where="the code and the weight of its divergence, all steps",
      cure="weigh the divergence by 1")  # fmt: skip
def pattern_book_of_a_jacquard_loom(folder, ill):
    seeded(14908)
    threads = torch.arange(64) / 64
    weft = torch.stack([(6.2832 * k * threads + k).sin() for k in (1, 2, 3, 5)])

    def cloths(rows):
        return ((torch.randn(rows, 4) @ weft) * 0.8 + 0.2 * torch.randn(rows, 64),)

    (x,), (tx,) = cloths(3000), cloths(600)
    draw = rounds(64, x)
    net = PatternBook(64, 6)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    weight = 60.0 if ill else 1.0

    def terms(cloth):
        again, mean, log_var = net(cloth)
        woven = 0.5 * (again - cloth).square().sum(1).mean()
        return woven, 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()

    def loss_of(step):
        woven, divergence = terms(*draw())
        return woven + weight * divergence, {"reconstruction": float(woven), "kl": float(divergence)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: sum(terms(tx))))


# 29 of the list
@sick("temperature-too-high", "logits-bounded", where="the loss, all steps", cure="a temperature of 0.1")
def pill_photographs_and_their_leaflets(folder, ill):
    seeded(14909)
    as_photo, as_text = torch.randn(8, 40) / 8**0.5, torch.randn(8, 32) / 8**0.5

    def pairs(rows):
        pill = torch.randn(rows, 8)
        photo = (1.5 * pill @ as_photo).tanh() + 0.2 * torch.randn(rows, 40)
        return photo, (1.5 * pill @ as_text).sin() + 0.2 * torch.randn(rows, 32)

    train, (photos, texts) = pairs(5000), pairs(400)
    draw = rounds(128, *train)
    net = nn.ModuleDict({"photo": dense(40, 96, 24, act=nn.GELU), "text": dense(32, 96, 24, act=nn.GELU)})
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    temperature = 10.0 if ill else 0.1

    def alike(photo, text):
        return F.normalize(net["photo"](photo), dim=1) @ F.normalize(net["text"](text), dim=1).T

    def astray():
        """How many photographs do not find their own leaflet first."""
        return (alike(photos, texts).argmax(1) != torch.arange(400)).float().mean()

    validate = now_and_then(net, 60, lambda: {"val_recall_at_1": 1 - astray()})

    def loss_of(step):
        logits = alike(*draw()) / temperature
        own = torch.arange(128)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2, validate(step)

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, astray))


# 32 of the list
@sick("lr-too-high", "update-too-large", "catastrophic-forgetting", where="all layers, the first steps",
      cure="a hundredth of the rate")  # fmt: skip
def stained_lift_passes_read_by_a_reader_of_clean_ones(folder, ill):
    seeded(14910)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    clean, before = rounds(64, x[:1000], y[:1000]), torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(120):
        image, number = clean()
        before.zero_grad()
        F.cross_entropy(net(image), number).backward()
        before.step()

    stain = 1.2 * torch.randn(1, 8, 8)
    stained = (0.6 * x + stain).flip(3)
    draw = rounds(32, stained[1000:1320], y[1000:1320])
    tx, ty = stained[1320:], y[1320:]
    optimizer = torch.optim.Adam(net.parameters(), 5e-2 if ill else 5e-4)
    validate = now_and_then(net, 25, judged(net, tx, ty))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: (net(tx).argmax(1) != ty).float().mean())
    return fit(folder, net, optimizer, loss_of, 150, score=score)


class Neighbours(nn.Module):
    """Graph convolutions over links that are normalised by both degrees."""

    def __init__(self, links, size, width, kinds, depth):
        super().__init__()
        links = links + torch.eye(len(links))
        root = links.sum(1).rsqrt()
        self.register_buffer("links", root[:, None] * links * root)
        self.layers = nn.ModuleList(nn.Linear(size if i == 0 else width, width) for i in range(depth))
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.head = nn.Linear(width, kinds)

    def embed(self, x):
        for layer in self.layers:
            x = F.relu(self.links @ layer(F.dropout(x, 0.3, self.training)))
        return x

    def forward(self, x):
        return self.head(self.embed(x))


# 38 of the list
@sick("over-smoothing", "representation-collapse", where="the layers, all steps", cure="two layers")
def topics_of_articles_that_link_to_each_other(folder, ill):
    seeded(14911)
    topic = torch.randint(5, (400,))
    chance = torch.where(topic[:, None] == topic, 0.06, 0.012)
    links = torch.triu((torch.rand(400, 400) < chance).float(), 1)
    words = torch.randn(5, 20)[topic] + 2.0 * torch.randn(400, 20)
    known = torch.randperm(400)
    known, asked = known[:200], known[200:]
    net = Neighbours(links + links.T, 20, 32, 5, 12 if ill else 2)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=2e-3)

    def measure():
        said = net(words)[asked]
        right = (said.argmax(1) == topic[asked]).float().mean()
        return {"val_loss": F.cross_entropy(said, topic[asked]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(words)[known]
        right = (said.argmax(1) == topic[known]).float().mean()
        return F.cross_entropy(said, topic[known]), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: (net(words)[asked].argmax(1) != topic[asked]).float().mean())
    return fit(folder, net, optimizer, loss_of, 100, before_step=clipped(net, 1.0), score=score)
