"""Sick trainings after public threads: schedules, routers, shapes, entropies, distances, adapters."""

from __future__ import annotations

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# https://github.com/LINCellularNeuroscience/VAME/issues/26
@sick(
    "schedule-too-short", "weights-unchanged",
    where="the learning rate, which is zero from step 150 on",
    cure="gamma=1 (or no scheduler at all) where the scheduler is switched off",
)  # fmt: skip
def gaits_of_horses_on_a_treadmill(folder, ill):
    seeded(2830)
    use_scheduler = False
    phase, pace = 6.28 * torch.rand(1200, 1), 0.2 + 0.5 * torch.rand(1200, 1)
    time = torch.arange(20.0)
    joints = torch.stack([(pace * k * time + phase * k).sin() for k in (1, 2, 3)], 2) + 0.05 * torch.randn(1200, 20, 3)
    body = nn.GRU(3, 32, batch_first=True)
    net = nn.ModuleDict({"body": body, "head": nn.Linear(32, 3)})
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    if use_scheduler:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.2)
    else:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0 if ill else 1)
    draw = rounds(64, joints[:960])

    def error(x):
        return F.mse_loss(net["head"](body(x[:, :-1])[0]), x[:, 1:])

    def after_step(step):
        if step % 15 == 14:
            schedule.step()

    score = held_out(net, lambda: error(joints[960:]))
    return fit(folder, net, optimizer, lambda step: error(draw()[0]), 600, score=score, after_step=after_step)


class Routed(nn.Module):
    """Every token goes to the expert of the highest score."""

    def __init__(self, size, experts, balance):
        super().__init__()
        self.gate = nn.Linear(size, experts, bias=False)
        self.experts = nn.ModuleList(dense(size, 12, size) for _ in range(experts))
        self.balance = balance
        self.register_buffer("bias", torch.zeros(experts))

    def forward(self, x):
        affinity = self.gate(x).sigmoid()
        chosen = (affinity + self.bias).argmax(1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * affinity[rows, i, None])
        if self.balance and self.training:
            load = F.one_hot(chosen, len(self.experts)).float().mean(0)
            self.bias += 0.005 * (load.mean() - load).sign()
        return x + out


# https://github.com/pytorch/torchtitan/issues/1246
@sick(
    "expert-starved",
    where="the experts and the gate, from the first steps on",
    cure="a bias on each expert's score that is raised where its load is low (or a loss for equal loads)",
)
def parcels_at_a_sorting_centre(folder, ill):
    seeded(2831)
    centres = torch.randn(8, 16)
    maps = torch.randn(8, 16, 4) / 2
    common = 5 * torch.randn(16)

    def draw():
        kind = torch.randint(8, (128,))
        own = torch.randn(128, 16)
        y = torch.einsum("bi,bio->bo", own, maps[kind]).tanh()
        return torch.stack([centres[kind] + common, own], 1).flatten(1), y

    net = nn.Sequential(Routed(32, 8, not ill), nn.LayerNorm(32), nn.Linear(32, 4))

    def error(step=0):
        x, y = draw()
        return F.mse_loss(net(x), y)

    def score():
        return held_out(net, lambda: sum(error() for _ in range(8)) / 8)()

    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, error, 700, score=score)


# https://github.com/pyemma/Argo/pull/27
@sick(
    "shapes-broadcast",
    where="the loss: predictions of [B, 1] against ratings of [B]",
    cure="squeeze the predictions (or unsqueeze the ratings) so that both are [B]",
)
def board_games_and_their_players(folder, ill):
    seeded(2832)
    taste, trait = torch.randn(60, 3), torch.randn(40, 3)
    player, game = torch.randint(60, (9000,)), torch.randint(40, (9000,))
    stars = ((taste[player] * trait[game]).sum(1) + 0.2 * torch.randn(9000)).clamp(-3, 3)
    net = nn.ModuleDict({
        "players": nn.Embedding(60, 16), "games": nn.Embedding(40, 16), "top": dense(48, 48, 24, 1),
    })  # fmt: skip

    def rate(p, g):
        left, right = net["players"](p), net["games"](g)
        return net["top"](torch.cat([left, right, left * right], 1))

    draw = rounds(128, player[:7500], game[:7500], stars[:7500])

    def loss_of(step):
        p, g, y = draw()
        predicted = rate(p, g)
        loss = F.mse_loss(predicted if ill else predicted.squeeze(1), y)
        return loss, {"mean_rating": predicted.mean()}

    score = held_out(net, lambda: F.mse_loss(rate(player[7500:], game[7500:])[:, 0], stars[7500:]))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return fit(folder, net, optimizer, loss_of, 700, score=score)


# https://github.com/LuEE-C/PPO-Keras/issues/4
@sick(
    "entropy-bonus-negated", "wrong-sign", "negative-loss",
    where="the entropy of the policy, which falls to nothing in the first updates",
    cure="the entropy is -p log p: it is to be raised, so the loss takes it away instead of adding it",
)  # fmt: skip
def kiosk_that_chooses_a_drink_to_offer(folder, ill):
    seeded(2833)
    net = nn.ModuleDict({"actor": dense(6, 48, 48, 8, act=nn.Tanh), "critic": dense(6, 48, 48, 1, act=nn.Tanh)})
    wants = torch.randn(6, 8)

    def pays(guest, drink):
        return torch.bernoulli((guest @ wants).softmax(1).gather(1, drink[:, None])[:, 0])

    def score():
        guest = torch.randn(1024, 6)
        with torch.no_grad():
            liking, offered = (guest @ wants).softmax(1), net["actor"](guest).softmax(1)
            return float((liking.max(1).values - (liking * offered).sum(1)).mean())

    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def one(step):
        guest = torch.randn(128, 6)
        with torch.no_grad():
            old = net["actor"](guest).log_softmax(1)
            drink = torch.multinomial(old.exp(), 1)[:, 0]
            paid = pays(guest, drink)
            advantage = paid - net["critic"](guest)[:, 0]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(3):
            log = net["actor"](guest).log_softmax(1)
            ratio = (log - old).gather(1, drink[:, None])[:, 0].exp()
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            spread = (log.exp() * log).sum(1).mean() if ill else -(log.exp() * log).sum(1).mean()
            value = F.mse_loss(net["critic"](guest)[:, 0], paid)
            loss = -(gain + 0.1 * spread) + 0.5 * value
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": loss, "value_loss": value, "entropy": spread, "reward": paid.mean()}

    return tend(folder, net, optimizer, one, 400, score)


# https://github.com/keras-team/keras/issues/9097
@sick(
    "nonfinite",
    where="the gradient of the root in the distance, at the first pair of the same image",
    cure="add a small number under the root (or do without the root)",
)
def signatures_compared_in_pairs(folder, ill):
    seeded(2834)
    x, y = digits()
    x = x.flatten(1)
    net = dense(64, 64, 32, 8)

    def pairs(low, high, rows=64):
        one, other = torch.randint(low, high, (2, rows))
        for _ in range(3):
            again = torch.randint(low, high, (rows,))
            other = torch.where((y[one] == y[other]) | (torch.arange(rows) % 2 == 0), other, again)
        return x[one], x[other], (y[one] == y[other]).float()

    def distance(a, b):
        squared = (a - b).square().sum(1)
        return squared.sqrt() if ill else (squared + 1e-6).sqrt()

    def contrast(low, high, rows=64):
        a, b, same = pairs(low, high, rows)
        far = distance(net(a), net(b))
        return (same * far.square() + (1 - same) * (1 - far).relu().square()).mean()

    score = held_out(net, lambda: contrast(1400, 1797, 1024))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    return fit(folder, net, optimizer, lambda step: contrast(0, 1400), 600, score=score)


class Adapted(nn.Module):
    """A frozen layer and a low rank beside it."""

    def __init__(self, layer, rank=8):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


class Stack(nn.Module):
    """Residual blocks between two linear layers, with checkpoints if wanted."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(10, 48)
        self.blocks = nn.ModuleList(dense(48, 64, 48, act=nn.GELU) for _ in range(3))
        self.head = nn.Linear(48, 1)
        self.gradient_checkpointing = self.input_require_grads = False

    def forward(self, x):
        h = self.embed(x)
        if self.input_require_grads:
            h.requires_grad_()
        for block in self.blocks:
            out = checkpoint(block, h, use_reentrant=True) if self.gradient_checkpointing else block(h)
            h = h + out
        return self.head(h)


# https://github.com/locuslab/open-unlearning/issues/178
@sick(
    "no-gradient",
    where="down and up of all blocks: next to the head nothing is trained",
    cure="let the input of the first checkpoint require gradients (enable_input_require_grads), or use_reentrant=False",
)
def yields_of_vines_in_another_valley(folder, ill):
    seeded(2835)
    net, ways = Stack(), torch.randn(2, 10, 4)

    def loss_of(valley):
        x = torch.randn(64, 10)
        return F.mse_loss(net(x), (x @ ways[valley] / 2).sin().sum(1, keepdim=True))

    first = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(300):
        first.zero_grad()
        loss_of(0).backward()
        first.step()
    net.embed.requires_grad_(False)
    for block in net.blocks:
        block[0], block[2] = Adapted(block[0]), Adapted(block[2])
    net.gradient_checkpointing = True
    net.input_require_grads = not ill

    def score():
        return held_out(net, lambda: sum(loss_of(1) for _ in range(16)) / 16)()

    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-3)
    return fit(folder, net, optimizer, lambda step: loss_of(1), 700, score=score)
