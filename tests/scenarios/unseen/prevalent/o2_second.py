"""Spectral classes, buoys on a radar, double stars, a drone over the vines, a publisher's prose, covers and blurbs."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, judged, now_and_then, rounds, tend


# 23 of the list
@sick("bad-initialisation", where="all linear layers, before the first step",
      cure="a spread of the weights by He's rule, not of 1")  # fmt: skip
def spectral_classes_from_photometric_bands(folder, ill):
    seeded(14106)
    bands = torch.randn(3, 20)

    def stars(rows):
        warmth = torch.randn(rows, 3)
        kind = (warmth[:, 0] + 0.5 * warmth[:, 1].square() > 0.4).long() + 2 * (warmth[:, 2].abs() > 0.7).long()
        return (warmth @ bands).tanh() + 0.1 * torch.randn(rows, 20), kind

    (x, y), (tx, ty) = stars(4000), stars(1000)
    draw = rounds(64, x, y)
    net = dense(20, 128, 128, 128, 4)
    for layer in net:
        if isinstance(layer, nn.Linear):
            if ill:
                nn.init.normal_(layer.weight)
            else:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def loss_of(step):
        light, kind = draw()
        return F.cross_entropy(net(light), kind), validate(step)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


# 25 of the list
@sick("dead-units", "bad-initialisation", where="the ReLUs behind the convolutions, from the first step on",
      cure="the bias of a rare mark only in the last layer, nought in the others")  # fmt: skip
def buoys_on_the_screen_of_the_harbour_radar(folder, ill):
    seeded(14107)
    blot = torch.tensor([[0.3, 0.6, 0.3], [0.6, 1.0, 0.6], [0.3, 0.6, 0.3]])[None, None]

    def screens(rows):
        buoy = (torch.rand(rows, 1, 16, 16) < 0.015).float()
        wave = F.avg_pool2d(torch.randn(rows, 1, 16, 16), 3, 1, 1) + 0.2 * torch.randn(rows, 1, 16, 16)
        return F.conv2d(buoy, blot, padding=1) * 1.5 + wave, buoy

    (x, y), (tx, ty) = screens(600), screens(150)
    draw = rounds(16, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    convolutions = [layer for layer in net if isinstance(layer, nn.Conv2d)]
    for layer in convolutions:
        nn.init.constant_(layer.bias, -4.2 if ill or layer is convolutions[-1] else 0.0)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def missed():
        """One less the overlap (Dice) of what is marked and what is there."""
        mark = net(tx).sigmoid()
        return 1 - 2 * (mark * ty).sum() / (mark + ty).sum()

    validate = now_and_then(net, 30, lambda: {"val_dice": 1 - missed()})

    def loss_of(step):
        screen, buoy = draw()
        return F.binary_cross_entropy_with_logits(net(screen), buoy), validate(step)

    return fit(folder, net, optimizer, loss_of, 210, score=held_out(net, missed))


# 28 of the list
@sick("generator-starves", "discriminator-too-strong", "saturating-generator-loss", where="the generator, all steps",
      cure="one step of the discriminator for each of the generator, both at a rate of 0.001")  # fmt: skip
def catalogue_of_double_stars_that_nobody_saw(folder, ill):
    seeded(14108)

    def seen(rows):
        side = 1.2 * (2 * torch.randint(2, (rows, 1)) - 1)
        return torch.cat([3 + side + 0.2 * torch.randn(rows, 1), 0.2 * torch.randn(rows, 1) + 2 - side], 1)

    make, judge = dense(4, 32, 32, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 5e-4 if ill else 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 5e-3 if ill else 1e-3, betas=(0.5, 0.999))

    def judge_loss():
        true, false = judge(seen(64)), judge(make(torch.randn(64, 4)).detach())
        return F.softplus(-true).mean() + F.softplus(false).mean()

    def make_loss():
        return F.logsigmoid(-judge(make(torch.randn(64, 4)))).mean()

    def score():
        """The energy distance between what is made and what is seen."""
        with torch.no_grad():
            true, false = seen(512), make(torch.randn(512, 4))
            within = torch.cdist(true, true).mean() + torch.cdist(false, false).mean()
            return float(2 * torch.cdist(true, false).mean() - within)

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=3 if ill else 1)


# 30 of the list
@sick("values-overestimated", "no-target-network", where="the values that are learnt from, all steps",
      cure="values of a copy of the network that is renewed every 25 steps")  # fmt: skip
def drone_that_finds_its_way_back_over_the_vines(folder, ill):
    seeded(14109)
    push = 0.5 * torch.cat([torch.eye(3), -torch.eye(3)])
    home = torch.tensor([0.8, -0.5, 0.4])

    def flown(place, way):
        return (0.95 * place + push[way]).clamp(-2, 2)

    place, way = torch.randn(3000, 3).clamp(-2, 2), torch.randint(6, (3000,))
    after = (flown(place, way) + 0.1 * torch.randn(3000, 3)).clamp(-2, 2)
    reward = 1 - (after - home).norm(dim=1) / 2
    draw = rounds(64, place, way, reward, after)
    net = dense(3, 64, 64, 6)
    target = net if ill else copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    starts = torch.randn(256, 3).clamp(-2, 2)

    def score():
        """How far from home it is on its ways, on the average."""
        at, away = starts, 0.0
        with torch.no_grad():
            for _ in range(30):
                at = flown(at, net(at).argmax(1))
                away += float((at - home).norm(dim=1).mean()) / 30
        return away

    def one(step):
        at, way, reward, after = draw()
        with torch.no_grad():
            worth = reward + 0.99 * target(after).max(1).values
        values = net(at)
        loss = F.mse_loss(values.gather(1, way[:, None])[:, 0], worth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not ill and step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "mean_value": float(values.mean())}

    return tend(folder, net, optimizer, one, 600, score)


# 33 of the list
@sick("labels-not-shifted", where="what the loss compares with, all steps",
      cure="ask for the token behind each, not for itself")  # fmt: skip
def house_style_of_the_publisher_word_by_word(folder, ill):
    seeded(14110)
    follows = (2 * torch.randn(24, 24)).softmax(1)

    def prose(rows, length=20):
        words = [torch.randint(24, (rows,))]
        for _ in range(length):
            words.append(torch.multinomial(follows[words[-1]], 1)[:, 0])
        return torch.stack(words, 1)

    text, unseen_text = prose(2000), prose(300)
    draw = rounds(32, text)

    class Writer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(24, 32)
            self.memory = nn.GRU(32, 48, batch_first=True)
            self.head = nn.Linear(48, 24)

        def forward(self, words):
            return self.head(self.memory(self.embed(words))[0])

    net = Writer()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def next_word(words):
        return F.cross_entropy(net(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    def loss_of(step):
        (words,) = draw()
        if ill:
            inputs, labels = words, words
            loss = F.cross_entropy(net(inputs).flatten(0, 1), labels.flatten())
        else:
            loss = next_word(words)
        return loss, {"perplexity": float(loss.detach().exp())}

    return fit(folder, net, optimizer, loss_of, 260, score=held_out(net, lambda: next_word(unseen_text)))


# 37 of the list
@sick("temperature-too-high", "logits-bounded", where="the logits of the loss, all steps",
      cure="divide the cosines by the temperature, do not multiply them")  # fmt: skip
def covers_and_the_blurbs_that_go_with_them(folder, ill):
    seeded(14111)
    looks, tells = torch.randn(6, 40), torch.randn(6, 30)

    def books(rows):
        book = torch.randn(rows, 6)
        cover = (book @ looks / 2).tanh() + 0.3 * torch.randn(rows, 40)
        return cover, (book @ tells / 2).sin() + 0.3 * torch.randn(rows, 30)

    (covers, blurbs), (tcovers, tblurbs) = books(4000), books(400)
    draw = rounds(64, covers, blurbs)
    net = nn.ModuleDict({"cover": dense(40, 96, 32), "blurb": dense(30, 96, 32)})
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)
    temperature = 0.07

    def cosines(cover, blurb):
        return F.normalize(net["cover"](cover), dim=1) @ F.normalize(net["blurb"](blurb), dim=1).T

    def not_found():
        """The share of covers that find another blurb than their own among a hundred."""
        parts = zip(tcovers.split(100), tblurbs.split(100), strict=True)
        return 1 - sum((cosines(*part).argmax(1) == torch.arange(100)).float().mean() for part in parts) / 4

    def loss_of(step):
        alike = cosines(*draw())
        logits = alike * temperature if ill else alike / temperature
        own = torch.arange(64)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, not_found))
