"""Trainings in which nothing is wrong, of an ordinary make: at sea and on the ice."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, rounds, tend


@healthy(0.5)
def numbers_stencilled_on_fish_crates(folder):
    seeded(11150)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=220)
    draw = rounds(48, images[:1400], labels[:1400])

    def loss_of(step):
        x, y = draw()
        said = net(x)
        return F.cross_entropy(said, y), {"accuracy": (said.argmax(1) == y).float().mean()}

    score = held_out(net, lambda: F.cross_entropy(net(images[1400:]), labels[1400:]))
    return fit(folder, net, optimizer, loss_of, 220, score=score, schedule=schedule)


@healthy(0.5)
def swell_at_a_weather_ship_six_steps_ahead(folder):
    seeded(11151)
    time = torch.arange(3000.0)
    swell = (time / 7).sin() + 0.6 * (time / 2.3 + 1).sin() + 0.4 * (time / 31).cos() + 0.1 * torch.randn(3000)
    swell = (swell - swell[:2400].mean()) / swell[:2400].std()
    windows = swell.unfold(0, 30, 1)
    net = nn.ModuleDict({"read": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 6)})
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def loss_on(window):
        return F.mse_loss(net["head"](net["read"](window[:, :24, None])[0][:, -1]), window[:, 24:])

    draw = rounds(64, windows[:2370])
    score = held_out(net, lambda: loss_on(windows[2400:]))
    return fit(folder, net, optimizer, lambda step: loss_on(*draw()), 250, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy(0.4)
def weather_from_the_words_of_a_whalers_notes(folder):
    seeded(11152)
    words, longest, kinds = 60, 16, 5
    mood = torch.randint(kinds, (words,))
    net = nn.ModuleDict({
        "word": nn.Embedding(words + 1, 32, padding_idx=words),
        "place": nn.Embedding(longest, 32),
        "body": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False,
        ),
        "norm": nn.LayerNorm(32),
        "head": nn.Linear(32, kinds),
    })  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.05)
    steps = 220
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=20)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - 20, 1e-5)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, fall], [20])

    def notes(rows):
        kind = torch.randint(kinds, (rows,))
        text = torch.randint(words, (rows, longest))
        own = torch.multinomial((mood[None] == kind[:, None]).float(), longest, replacement=True)
        text = torch.where(torch.rand(rows, longest) < 0.4, own, text)
        over = torch.arange(longest) >= torch.randint(8, longest + 1, (rows, 1))
        return text.masked_fill(over, words), over, kind

    def loss_on(text, over, kind):
        x = net["word"](text) + net["place"](torch.arange(longest))
        x = net["norm"](net["body"](x, src_key_padding_mask=over)).masked_fill(over[:, :, None], 0)
        return F.cross_entropy(net["head"](x.sum(1) / (~over).sum(1, keepdim=True)), kind)

    test = notes(500)
    score = held_out(net, lambda: loss_on(*test))
    return fit(folder, net, optimizer, lambda step: loss_on(*notes(32)), steps, score=score, schedule=schedule)


@healthy(0.3)
def snow_crystals_by_four_latents(folder):
    seeded(11153)
    lines = torch.randn(4, 36)
    net = nn.ModuleDict({"read": dense(36, 64, 8), "draw": dense(4, 64, 36)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def crystals(rows):
        return torch.sigmoid(1.5 * torch.randn(rows, 4) @ lines)

    def parts(x):
        middle, log_spread = net["read"](x).chunk(2, 1)
        z = middle + torch.randn_like(middle) * (log_spread / 2).exp()
        rebuilt = F.binary_cross_entropy_with_logits(net["draw"](z), x, reduction="none").sum(1).mean()
        return rebuilt, 0.5 * (middle.square() + log_spread.exp() - 1 - log_spread).sum(1).mean()

    def loss_of(step):
        rebuilt, kl = parts(crystals(64))
        return rebuilt + kl, {"reconstruction": rebuilt.detach(), "kl": kl.detach()}

    test = crystals(500)
    # the gap to the least that the cross-entropy of grey pixels can be
    floor = F.binary_cross_entropy(test, test, reduction="none").sum(1).mean()
    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: sum(parts(test)) - floor))


@healthy(0.5)
def a_chain_of_five_islands_imagined(folder):
    seeded(11154)
    norm = nn.utils.parametrizations.spectral_norm
    make = dense(6, 64, 64, 2)
    judge = nn.Sequential(
        norm(nn.Linear(2, 64)), nn.LeakyReLU(0.2), norm(nn.Linear(64, 64)), nn.LeakyReLU(0.2), norm(nn.Linear(64, 1))
    )
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.0, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 4e-3, betas=(0.0, 0.9))
    turn = torch.arange(5) * 0.5
    islands = torch.stack([3 * turn - 3, 2 * (turn * 2).sin() + 1], 1)

    def chart(rows):
        return islands[torch.randint(5, (rows,))] + 0.15 * torch.randn(rows, 2)

    def judge_loss():
        return F.relu(1 - judge(chart(64))).mean() + F.relu(1 + judge(make(torch.randn(64, 6)).detach())).mean()

    def score():
        with torch.no_grad():
            return float(torch.cdist(make(torch.randn(512, 6)), islands).min(1).values.mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, lambda: -judge(make(torch.randn(64, 6))).mean(),
                   700, score)  # fmt: skip


@healthy(0.3)
def a_raft_poled_home_between_the_floes(folder):
    seeded(11155)
    side, gamma = 4, 0.9
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    net, target = dense(16, 64, 64, 4), dense(16, 64, 64, 4)
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    memory = []

    def act(at, action):
        to = (at + moves[action]).clamp(0, side - 1)
        home = bool((to == side - 1).all())
        return to, (1.0 if home else -0.05), home

    def see(at):
        return F.one_hot(at[..., 0] * side + at[..., 1], 16).float()

    def one(step):
        at = torch.randint(side, (2,)) if not memory or memory[-1][4] else memory[-1][3]
        for _ in range(4):
            share = max(0.1, 1 - step / 150)
            with torch.no_grad():
                action = int(torch.randint(4, ())) if torch.rand(()) < share else int(net(see(at)).argmax())
            to, reward, home = act(at, action)
            memory.append((at, action, reward, to, home))
            at = torch.randint(side, (2,)) if home else to
        rows = [memory[i] for i in torch.randint(max(0, len(memory) - 2000), len(memory), (64,)).tolist()]
        old, new = torch.stack([r[0] for r in rows]), torch.stack([r[3] for r in rows])
        action, reward = torch.tensor([r[1] for r in rows]), torch.tensor([r[2] for r in rows])
        over = torch.tensor([r[4] for r in rows]).float()
        with torch.no_grad():
            wanted = reward + gamma * (1 - over) * target(see(new)).max(1).values
        value = net(see(old)).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "q": value.mean().detach()}

    def score():
        total = 0
        with torch.no_grad():
            for start in range(15):
                at = torch.tensor([start // side, start % side])
                for _ in range(12):
                    at, _, home = act(at, int(net(see(at)).argmax()))
                    total += 1
                    if home:
                        break
        return total / 15

    return tend(folder, net, optimizer, one, 450, score)


class Soundings(nn.Module):
    """A small U-Net."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = self.block(1, 12), self.block(12, 24)
        self.up, self.join, self.last = nn.ConvTranspose2d(24, 12, 2, 2), self.block(24, 12), nn.Conv2d(12, 1, 1)

    @staticmethod
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x):
        high = self.down(x)
        return self.last(self.join(torch.cat([high, self.up(self.deep(F.max_pool2d(high, 2)))], 1)))


@healthy(0.5)
def leads_of_open_water_in_the_pack(folder):
    seeded(11156)
    net = Soundings()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    grid = torch.linspace(-1, 1, 20)

    def packs(rows):
        turn, shift = 3.14 * torch.rand(rows, 1, 1), torch.randn(rows, 1, 1) / 3
        gap = (turn.cos() * grid[:, None] + turn.sin() * grid - shift).abs() < 0.15
        return (0.8 - 0.6 * gap + 0.25 * torch.randn(rows, 20, 20))[:, None], gap.float()[:, None]

    def dice_of(said, gap):
        both = (said.sigmoid() * gap).sum((1, 2, 3))
        return (1 - (2 * both + 1) / (said.sigmoid().sum((1, 2, 3)) + gap.sum((1, 2, 3)) + 1)).mean()

    def loss_of(step):
        image, gap = packs(16)
        said = net(image)
        dice = dice_of(said, gap)
        return F.binary_cross_entropy_with_logits(said, gap) + dice, {"dice": dice.detach()}

    image, gap = packs(100)
    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: dice_of(net(image), gap)))


@healthy(0.4)
def islets_sorted_by_the_birds_they_share(folder):
    seeded(11157)
    nodes, kinds = 240, 4
    kind = torch.randint(kinds, (nodes,))
    near = torch.rand(nodes, nodes) < torch.where(kind[:, None] == kind, 0.06, 0.008)
    near = (near | near.T | torch.eye(nodes, dtype=torch.bool)).float()
    root = near.sum(1).rsqrt()
    spread = root[:, None] * near * root
    birds = torch.randn(kinds, 16)[kind] * 0.6 + torch.randn(nodes, 16)
    known = torch.rand(nodes) < 0.4
    net = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, kinds)])
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)

    def said():
        hidden = F.dropout(F.relu(spread @ net[0](birds)), 0.5, net.training)
        return spread @ net[1](hidden)

    def loss_of(step):
        return F.cross_entropy(said()[known], kind[known])

    score = held_out(net, lambda: F.cross_entropy(said()[~known], kind[~known]))
    return fit(folder, net, optimizer, loss_of, 150, score=score)
