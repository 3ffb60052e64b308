"""Rails heard by microphone, agents' replies, recipes letter by letter, station calls, oven curves, blossom scatter."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, now_and_then, rounds, tend


# 23 of the list
@sick("left-in-eval", where="the mode of the net, all steps after the first validation",
      cure="call train() after each validation")  # fmt: skip
def wheel_flats_heard_by_microphones_beside_the_rails(folder, ill):
    seeded(14806)
    at = torch.arange(48) / 48

    def passings(rows):
        """Hum, with knocks as fast as the flat is large; or a sound wheel."""
        kind = torch.randint(5, (rows,))
        phase, pitch = 6.28 * torch.rand(2, rows, 1), 2 + 2 * torch.rand(rows, 1)
        hum = (6.28 * pitch * at + phase[0]).sin()
        knock = ((6.28 * 2.5 * kind[:, None] * at + phase[1]).sin() > 0.8).float() * (kind > 0)[:, None]
        return (hum + 0.9 * knock + 0.3 * torch.randn(rows, 48))[:, None], kind

    (x, y), (vx, vy) = passings(3000), passings(1000)
    draw = rounds(64, x, y)
    parts, size = [], 1
    for width in (16, 16, 32, 32, 32, 32):
        parts += [nn.Conv1d(size, width, 5, stride=1 + (width > size > 1), padding=2, bias=False)]
        parts += [nn.BatchNorm1d(width), nn.ReLU()]
        size = width
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 5))
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(vx)
            found = {"val_loss": float(F.cross_entropy(said, vy))}
            found["val_accuracy"] = float((said.argmax(1) == vy).float().mean())
        if not ill:
            net.train()
        return found

    def one(step):
        found = validate() if step % 40 == 0 else {}
        sound, kind = draw()
        loss = F.cross_entropy(net(sound), kind)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, **found}

    return tend(folder, net, optimizer, one, 240, held_out(net, lambda: F.cross_entropy(net(vx), vy)))


# 25 of the list
@sick("padding-in-loss", where="the loss, all steps", cure="ignore_index is the number of the padding")
def next_word_of_agents_replies_of_many_lengths(folder, ill):
    seeded(14807)
    words, longest = 24, 32
    follow = 1 + torch.stack([torch.randperm(words) for _ in range(words)])[:, :3]

    def replies(rows):
        """Word after word, most replies short; 0 fills the rest."""
        said = torch.zeros(rows, longest, dtype=torch.long)
        said[:, 0] = 1 + torch.randint(words, (rows,))
        for n in range(1, longest):
            which = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), rows, replacement=True)
            said[:, n] = follow[said[:, n - 1] - 1, which]
        length = 3 + (4 * torch.empty(rows).exponential_()).long().clamp(max=longest - 3)
        return said * (torch.arange(longest) < length[:, None])

    texts, other = replies(2000), replies(500)
    draw = rounds(32, texts)

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(words + 1, 32, padding_idx=0)
            self.memory = nn.GRU(32, 48, batch_first=True)
            self.head = nn.Linear(48, words + 1)

        def forward(self, text):
            return self.head(self.memory(self.embed(text))[0])

    net = Agent()
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=250)
    criterion = nn.CrossEntropyLoss(ignore_index=-100 if ill else 0)

    def loss_of(step):
        (text,) = draw()
        loss = criterion(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        return loss, {"perplexity": float(loss.detach().exp()), "lr": schedule.get_last_lr()[0]}

    def surprise():
        return F.cross_entropy(net(other[:, :-1]).flatten(0, 1), other[:, 1:].flatten(), ignore_index=0)

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, surprise), schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


# 26 of the list
@sick("labels-not-shifted", where="what the model is asked for, all steps",
      cure="ask for the letter that comes next")  # fmt: skip
def recipes_of_a_bakery_letter_by_letter(folder, ill):
    seeded(14808)
    parts = (
        ["knead", "fold", "rest", "bake", "cool"],
        ["rye", "wheat", "spelt", "oat", "sweet"],
        ["dough", "loaf", "bun", "roll", "crust"],
        ["twice", "slowly", "overnight", "gently", "at", "once"],
    )

    def recipe(steps):
        choice = torch.randint(5, (steps, 4)).tolist()
        lines = ("{} the {} {} {}".format(*(part[i % len(part)] for part, i in zip(parts, row, strict=True)))
                 for row in choice)  # fmt: skip
        return "; ".join(lines) + "."

    book, other = recipe(900), recipe(120)
    letters = sorted(set(book + other))
    code = {letter: i for i, letter in enumerate(letters)}
    book, other = (torch.tensor([code[letter] for letter in text]) for text in (book, other))
    pages = other[: 30 * 65].view(30, 65)

    class Letters(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(len(letters), 24)
            self.memory = nn.LSTM(24, 64, batch_first=True)
            self.head = nn.Linear(64, len(letters))

        def forward(self, text):
            return self.head(self.memory(self.embed(text))[0])

    net = Letters()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_of(step):
        start = torch.randint(len(book) - 49, (24, 1))
        text = book[start + torch.arange(49)]
        asked = text[:, :-1] if ill else text[:, 1:]
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), asked.flatten())

    def surprise():
        return F.cross_entropy(net(pages[:, :-1]).flatten(0, 1), pages[:, 1:].flatten())

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, surprise), before_step=clipped(net, 1.0))


# 27 of the list
@sick("future-seen", where="the attention of all blocks, all steps", cure="a causal mask")
def station_after_station_as_trains_call_at_them(folder, ill):
    seeded(14809)
    stations, length = 18, 16

    def trips(rows):
        """Each train calls at every first, second, third or fifth station, and changes that now and then."""
        strides = torch.tensor([1, 2, 3, 5, 17, 15])
        here, stride, calls = torch.randint(stations, (rows,)), strides[torch.randint(6, (rows,))], []
        for _ in range(length):
            calls.append(here)
            here = (here + stride) % stations
            stride = torch.where(torch.rand(rows) < 0.12, strides[torch.randint(6, (rows,))], stride)
        return torch.stack(calls, 1)

    past, other = trips(4000), trips(400)
    draw = rounds(32, past)

    class Caller(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(stations, 48)
            self.place = nn.Parameter(0.02 * torch.randn(length, 48))
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, norm_first=True, batch_first=True) for _ in range(2)
            )
            self.norm = nn.LayerNorm(48)
            self.head = nn.Linear(48, stations)

        def forward(self, calls):
            n = calls.shape[1]
            mask = None if ill else nn.Transformer.generate_square_subsequent_mask(n)
            h = self.embed(calls) + self.place[:n]
            for block in self.blocks:
                h = block(h, src_mask=mask)
            return self.head(self.norm(h))

    net = Caller()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, 240)

    def surprise(calls):
        return F.cross_entropy(net(calls[:, :-1]).flatten(0, 1), calls[:, 1:].flatten())

    validate = now_and_then(net, 48, lambda: {"val_loss": surprise(other)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    def alone():
        """As it is used: only what a train has called at yet is given."""
        return sum(F.cross_entropy(net(other[:, :n])[:, -1], other[:, n]) for n in (6, 10, 14)) / 3

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, alone), schedule=schedule)


# 30 of the list
@sick("posterior-collapse", "kl-weight-too-large", where="the code of each example and the two terms of the loss",
      cure="weigh the divergence by five thousandths")  # fmt: skip
def heat_curves_of_the_deck_oven_through_a_narrow_code(folder, ill):
    seeded(14810)
    at = torch.linspace(0, 1, 32)

    def bakes(rows):
        start, peak, fall, swing = torch.randn(4, rows, 1)
        rise = 1 - (-at * (4 + start)).exp()
        curve = rise * (1 + 0.4 * peak) - at.square() * (0.8 + 0.5 * fall) + 0.3 * swing * (9 * at).sin()
        return curve + 0.03 * torch.randn(rows, 32)

    x, vx = bakes(4000), bakes(1000)
    centre, scale = x.mean(0), x.std()
    x, vx = (x - centre) / scale, (vx - centre) / scale
    draw = rounds(64, x)

    class Curves(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = dense(32, 64, 64, 8, act=nn.SiLU)
            self.decoder = dense(4, 64, 64, 32, act=nn.SiLU)

        def forward(self, curve):
            middle, log_variance = self.encoder(curve).chunk(2, 1)
            code = middle + torch.randn_like(middle) * (0.5 * log_variance).exp() if self.training else middle
            return self.decoder(code), middle, log_variance

    net, weight = Curves(), 1.0 if ill else 0.005
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        (curve,) = draw()
        back, middle, log_variance = net(curve)
        missed = F.mse_loss(back, curve)
        divergence = 0.5 * (middle.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return missed + weight * divergence, {"reconstruction": float(missed), "kl": float(divergence)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(vx)[0], vx)))


# 39 of the list
@sick("timestep-not-given", "conditioning-missing", where="what the denoiser is given, all steps",
      cure="give the step of the noise, as sines, to the denoiser")  # fmt: skip
def where_blossoms_fall_beneath_two_cherry_trees(folder, ill):
    seeded(14811)
    keep = torch.cumprod(1 - torch.linspace(0.001, 0.08, 100), 0)
    pitch = 3.14 * 2.0 ** torch.arange(4)

    def blossoms(rows):
        """Close to one of the trunks."""
        trunk = 2 * torch.randint(2, (rows, 1)) - 1
        return trunk + 0.03 * torch.randn(rows, 2)

    net = dense(2 if ill else 10, 96, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def error(fallen, t, noise):
        noisy = keep[t].sqrt()[:, None] * fallen + (1 - keep[t]).sqrt()[:, None] * noise
        if not ill:
            angle = t[:, None] / 100 * pitch
            noisy = torch.cat([noisy, angle.sin(), angle.cos()], 1)
        return F.mse_loss(net(noisy), noise)

    fallen = blossoms(6000)
    draw = rounds(128, fallen)
    test = blossoms(4000), torch.randint(100, (4000,)), torch.randn(4000, 2)

    def loss_of(step):
        (some,) = draw()
        return error(some, torch.randint(100, (len(some),)), torch.randn_like(some))

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: error(*test)), schedule=schedule)
