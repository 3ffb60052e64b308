"""Sound trainings of an ordinary make: endgames, molecules, ferries, kilns."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def learned(net, loss_of, steps, rate=2e-3):
    """What a net knows before the training that counts."""
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()


# ------------------------------------------------------------------------------------------------------------ endgames


def endgames(rows):
    """King and rook against king: the board in three planes, where each stands, and its squares."""
    squares = torch.stack([torch.randperm(64)[:3] for _ in range(rows)])
    return F.one_hot(squares, 64).float().unflatten(2, (8, 8)), torch.stack([squares // 8, squares % 8], 2)


def facts(at):
    """Who stands near whom and who is on whose line: what the body has learned to see."""
    king, rook, lone = at.unbind(1)
    kings, rooks = (king - lone).abs().amax(1), (rook - lone).abs().amax(1)
    edge = torch.minimum(lone, 7 - lone).amin(1)
    return torch.stack([kings <= 2, kings <= 4, rooks <= 2, rooks <= 4, edge == 0, edge <= 1, edge <= 2], 1).float()


@healthy()
def endgames_with_a_rook(folder, epoch=50):
    seeded(2413)
    body = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(384, 64), nn.ReLU(),
    )  # fmt: skip
    old_head, (boards, at) = nn.Linear(64, 7), endgames(4000)
    known = rounds(64, boards, facts(at))

    def of_facts():
        x, y = known()
        return F.binary_cross_entropy_with_logits(old_head(body(x)), y)

    learned(nn.Sequential(body, old_head), of_facts, 400)
    body.requires_grad_(False)
    net = nn.ModuleDict({"body": body, "fc": nn.Linear(64, 4)})
    boards, at = endgames(2000)
    stage = facts(at)[:, [0, 4]].long() @ torch.tensor([2, 1])
    draw, x_new, y_new = rounds(32, boards[:1600], stage[:1600]), boards[1600:], stage[1600:]
    optimizer = torch.optim.SGD(net["fc"].parameters(), 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7 * epoch, 0.1)

    def loss_of(step):
        x, y = draw()
        out = net["fc"](body(x))
        return F.cross_entropy(out, y), {"acc": (out.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net["fc"](body(x_new)), y_new))
    return fit(folder, net, optimizer, loss_of, 10 * epoch, score=score, schedule=schedule)


# ----------------------------------------------------------------------------------------------------------- molecules


def strings_of_molecules(signs):
    """A text of chains with branches and rings, each closed as it was opened."""
    text = []
    while len(text) < signs:
        open_signs = []
        for _ in range(4 + int(torch.randint(10, ()))):
            text.append("CCCNO"[int(torch.randint(5, ()))])
            turn = float(torch.rand(()))
            if turn < 0.15 and len(open_signs) < 2:
                text.append("(")
                open_signs.append(")")
            elif turn < 0.25 and "1" not in open_signs:
                text.append("1")
                open_signs.append("1")
            elif turn < 0.5 and open_signs:
                text.append(open_signs.pop())
            elif turn < 0.65:
                text.append("=C")
        text += [*reversed(["C" + sign for sign in open_signs]), "."]
    return torch.tensor(["CNO()1=.".index(sign) for sign in "".join(text)][:signs])


class Speller(nn.Module):
    def __init__(self, signs=8, width=64):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.1), nn.Embedding(signs, 32)
        self.rnn, self.decoder = nn.LSTM(32, width), nn.Linear(width, signs)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, x, hidden=None):
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return self.decoder(self.drop(out)), hidden


@healthy()
def molecules_spelled_out(folder, columns=20, window=20, epochs=14):
    seeded(2414)
    text, new = (strings_of_molecules(n).view(columns, -1).T for n in (16020, 4020))
    net, hidden, lowest, starts = Speller(), None, math.inf, range(0, len(text) - window, window)
    optimizer = torch.optim.SGD(net.parameters(), 5.0)

    def loss(columns_of, state=None):
        out, state = net(columns_of[:-1], state)
        return F.cross_entropy(out.flatten(0, 1), columns_of[1:].flatten()), state

    score = held_out(net, lambda: loss(new)[0])

    def one(step):
        nonlocal hidden, lowest
        at = starts[step % len(starts)]
        hidden = None if at == 0 else tuple(part.detach() for part in hidden)
        optimizer.zero_grad()
        now, hidden = loss(text[at : at + window + 1], hidden)
        now.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        if at < starts[-1]:
            return {"loss": now}
        level = score()
        if level > lowest:
            optimizer.param_groups[0]["lr"] /= 4
        lowest = min(lowest, level)
        return {"loss": now, "val_loss": level, "val_ppl": math.exp(level)}

    return tend(folder, net, optimizer, one, epochs * len(starts), score)


# ------------------------------------------------------------------------------------------------------------- ferries


def days_at_sea(rows, hours=25):
    """Wind, swell, tide and fog by the hour, and how the noon crossing went: on time, late, rerouted, called off."""
    t, phase = torch.arange(hours) / 4, 6.2832 * torch.rand(rows, 2, 1)
    wind = torch.randn(rows, 1) + 0.7 * (t + phase[:, 0]).sin()
    swell = 0.8 * wind.roll(3, 1) + 0.2 * torch.randn(rows, 1)
    tide, fog = (2 * t + phase[:, 1]).sin(), torch.randn(rows, 1) - 0.3 * wind
    day = torch.stack([wind, swell, tide, fog], 2) + 0.1 * torch.randn(rows, hours, 4)
    rough, shallow = wind[:, 12] + swell[:, 12] > 0.7, tide[:, 12] < -0.2
    return day, 2 * rough.long() + (shallow | (fog[:, 12] > 1)).long()


class Layer(nn.Module):
    """A residual layer that skips some of the rows while it is trained."""

    def __init__(self, width, drop):
        super().__init__()
        self.norm, self.mlp, self.drop = nn.LayerNorm(width), dense(width, 2 * width, width, act=nn.GELU), drop

    def forward(self, x):
        keep = (torch.rand(len(x), 1) >= self.drop).float() / (1 - self.drop) if self.training else 1.0
        return x + keep * self.mlp(self.norm(x))


def groups_by_depth(net, rate, decay, share=0.75):
    """The nearer to the inputs a layer is, the lower its rate; biases and norms do not decay."""
    parts = [net["stem"], *net["layers"], nn.ModuleList([net["norm"], net["head"]])]
    groups = []
    for height, part in enumerate(reversed(parts)):
        for wide in (True, False):
            params = [p for p in part.parameters() if (p.dim() > 1) == wide]
            if params:
                groups.append({"params": params, "lr": rate * share**height, "weight_decay": decay if wide else 0.0})
    return groups


@healthy()
def crossings_of_a_ferry(folder, steps=450, warm=40):
    seeded(2415)
    layers = nn.ModuleList(Layer(48, 0.1 * depth / 3) for depth in range(4))
    parts = {"stem": nn.Linear(100, 48), "layers": layers, "norm": nn.LayerNorm(48), "head": nn.Linear(48, 100)}
    net, past = nn.ModuleDict(parts), rounds(64, days_at_sea(4000)[0])

    def out(net, day):
        x = net["stem"](day.flatten(1))
        for layer in net["layers"]:
            x = layer(x)
        return net["head"](net["norm"](x))

    def of_gaps():
        (day,) = past()
        seen = (torch.rand(len(day), 25, 1) > 0.3).float()
        return F.mse_loss(out(net, day * seen), day.flatten(1))

    learned(net, of_gaps, 200)
    net["head"] = nn.Linear(48, 4)
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    draw, (x_new, y_new) = rounds(64, *days_at_sea(3000)), days_at_sea(600)
    optimizer = torch.optim.AdamW(groups_by_depth(net, 2e-3, 0.05))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )

    def loss_of(step):
        day, y = draw()
        return F.cross_entropy(out(net, day), y, label_smoothing=0.1)

    def after_step(step):
        average.update_parameters(net)

    score = held_out(average, lambda: F.cross_entropy(out(average.module, x_new), y_new))
    return fit(folder, net, optimizer, loss_of, steps, score=score, after_step=after_step, schedule=schedule)


# --------------------------------------------------------------------------------------------------------------- kilns


def firings(rows, hours=24, levels=20):
    """How hot a kiln is by the hour, in levels: heated, held, let cool."""
    top, rise, hold = 0.5 + 0.5 * torch.rand(rows, 1), 4 + 5 * torch.rand(rows, 1), 3 + 5 * torch.rand(rows, 1)
    t = torch.arange(hours)
    heat = top * torch.minimum((t / rise).clamp(0, 1), (-(t - rise - hold).clamp(min=0) / 6).exp())
    return ((heat + 0.01 * torch.randn(rows, hours)) * levels).long().clamp(0, levels - 1)


def blanked(tokens, mask=20):
    """What a masked language model is shown, and what it is asked: elsewhere the label is -100."""
    asked = torch.rand(tokens.shape) < 0.15
    turn = torch.rand(tokens.shape)
    shown = torch.where(asked & (turn < 0.8), mask, tokens)
    shown = torch.where(asked & (turn > 0.9), torch.randint_like(tokens, mask), shown)
    return shown, torch.where(asked, tokens, -100)


class Kiln(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.tokens, self.places, self.norm = nn.Embedding(21, width), nn.Embedding(24, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder, self.decoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, 20)

    def forward(self, x):
        return self.decoder(self.encoder(self.norm(self.tokens(x) + self.places.weight)))


@healthy()
def kilns_by_the_hour(folder, steps=260, warm=26):
    seeded(2416)
    net, draw, new = Kiln(), rounds(24, firings(6400)), blanked(firings(500))
    narrow = [p for p in net.parameters() if p.dim() < 2]
    wide = [p for p in net.parameters() if p.dim() >= 2]
    groups = [{"params": wide, "weight_decay": 0.01}, {"params": narrow, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / (steps - warm))
    )

    def loss(shown, labels, reduction="mean"):
        return F.cross_entropy(net(shown).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction=reduction)

    def one(step):
        parts = [blanked(draw()[0]) for _ in range(2)]
        asked, total = sum(int((labels >= 0).sum()) for _, labels in parts), 0.0
        optimizer.zero_grad()
        for shown, labels in parts:
            part = loss(shown, labels, "sum") / asked
            part.backward()
            total += part.item()
        clipped(net, 1.0)(step)
        optimizer.step()
        schedule.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, steps, held_out(net, lambda: loss(*new)))
