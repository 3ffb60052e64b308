"""A coast guard, an insurance office and a botanical garden, ten healthy ones: slicks, patrols, claims, leaves."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, in_turn, judged, now_and_then, rounds, tend


@healthy(0.5)
def oil_slicks_outlined_on_radar_by_a_small_unet(folder):
    seeded(14522)

    def views(rows, side=16):
        down, across = torch.meshgrid(torch.arange(side).float(), torch.arange(side).float(), indexing="ij")
        middle, axes = 3 + 10 * torch.rand(rows, 2, 1, 1), 2 + 3 * torch.rand(rows, 2, 1, 1)
        far = ((down - middle[:, 0]) / axes[:, 0]).square() + ((across - middle[:, 1]) / axes[:, 1]).square()
        slick = (far < 1).float()[:, None]
        return 1 - 1.2 * slick + 0.7 * torch.randn(rows, 1, side, side), slick

    def layer(before, after):
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())

    class Outline(nn.Module):
        def __init__(self):
            super().__init__()
            self.fine, self.coarse, self.joined = layer(1, 12), layer(12, 24), layer(36, 12)
            self.out = nn.Conv2d(12, 1, 1)

        def forward(self, x):
            fine = self.fine(x)
            coarse = F.interpolate(self.coarse(F.max_pool2d(fine, 2)), scale_factor=2.0, mode="nearest")
            return self.out(self.joined(torch.cat([fine, coarse], 1)))

    (x, y), (tx, ty) = views(1500), views(200)
    net, draw = Outline(), rounds(20, x, y)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def terms(x, y):
        said = net(x)
        share = said.sigmoid()
        overlap = (2 * (share * y).sum((1, 2, 3)) + 1) / ((share + y).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(said, y), (1 - overlap).mean()

    validate = now_and_then(net, 45, lambda: {"val_loss": sum(terms(tx, ty))})

    def loss_of(step):
        entropy, dice = terms(*draw())
        return entropy + dice, {"bce": float(entropy.detach()), "dice": float(dice.detach()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 180, score=held_out(net, lambda: sum(terms(tx, ty))))


@healthy(0.5)
def patrol_sectors_chosen_by_a_policy_with_a_mean_for_its_baseline(folder):
    seeded(14523)
    worth = torch.randn(8, 4) / 8**0.5
    states = torch.randn(1000, 8)
    net = dense(8, 48, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def one(step):
        optimizer.zero_grad()
        state = torch.randn(128, 8)
        policy = torch.distributions.Categorical(logits=net(state))
        sector = policy.sample()
        found = (state @ worth)[torch.arange(128), sector] + 0.3 * torch.randn(128)
        gained = (found - found.mean()) / (found.std() + 1e-6)
        entropy = policy.entropy().mean()
        loss = -(gained * policy.log_prob(sector)).mean() - 0.01 * entropy
        loss.backward()
        optimizer.step()
        return {"loss": float(loss), "reward": float(found.mean()), "entropy": float(entropy)}

    @torch.no_grad()
    def regret():
        value = states @ worth
        return float((value.amax(1) - (net(states).softmax(1) * value).sum(1)).mean())

    return tend(folder, net, optimizer, one, 400, regret)


@healthy(0.4)
def claims_of_a_year_counted_with_the_months_insured(folder):
    seeded(14524)
    way = torch.randn(9, 3) / 9**0.5

    def policies(rows):
        x, months = torch.randn(rows, 9), torch.randint(1, 13, (rows,)).float()
        seen = x @ way
        rate = (0.9 * seen[:, 0] + 0.5 * seen[:, 1] * seen[:, 2] + 0.2).exp()
        return x, months / 12, rate, torch.poisson(rate * months / 12)

    x, years, _, claims = policies(8000)
    tx, tyears, trate, _ = policies(2000)
    net, draw = dense(9, 48, 48, 1, act=nn.SiLU), rounds(128, x, years, claims)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=0.01)

    def loss_of(step):
        policy, years, claims = draw()
        return F.poisson_nll_loss(net(policy)[:, 0] + years.log(), claims, log_input=True)

    def divergence():
        """Of the told rates from the true ones."""
        said = net(tx)[:, 0]
        return (tyears * (trate * (trate.log() - said) - trate + said.exp())).mean()

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, divergence))


@healthy(0.4)
def two_photographs_of_one_leaf_brought_together(folder):
    seeded(14525)
    shapes, lift = torch.randn(40, 6), torch.randn(6, 32) / 6**0.5

    def photographs(kind):
        return ((shapes[kind] + 0.3 * torch.randn(len(kind), 6)) @ lift).tanh() + 0.3 * torch.randn(len(kind), 32)

    net = dense(32, 96, 64, 16)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-4)

    def contrast(kind, temperature=0.2):
        first, second = (F.normalize(net(photographs(kind)), dim=1) for _ in range(2))
        alike, own = first @ second.T / temperature, torch.arange(len(kind))
        return (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2

    def loss_of(step):
        return contrast(torch.randperm(40)[:32])

    def score():
        return torch.stack([contrast(torch.randperm(40)[:32]) for _ in range(10)]).mean()

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, score))


@healthy(0.3)
def petals_drawn_from_a_code_of_three_numbers(folder):
    seeded(14526)
    lift = torch.randn(3, 20)

    def petals(rows):
        return (torch.randn(rows, 3) @ lift / 1.7).sin() + 0.2 * torch.randn(rows, 20)

    x, tx = petals(4000), petals(1000)
    net = nn.ModuleDict({"encoder": dense(20, 64, 6, act=nn.ELU), "decoder": dense(3, 64, 64, 20, act=nn.ELU)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(100, x)

    def terms(petal):
        middle, log_variance = net["encoder"](petal).chunk(2, 1)
        code = middle + (log_variance / 2).exp() * torch.randn_like(middle)
        redrawn = (net["decoder"](code) - petal).square().sum(1).mean() / (2 * 0.1)
        return redrawn, 0.5 * (middle.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()

    def one(step):
        optimizer.zero_grad()
        redrawn, divergence = terms(*draw())
        loss = redrawn + divergence
        loss.backward()
        optimizer.step()
        return {"loss": float(loss), "reconstruction": float(redrawn), "kl": float(divergence)}

    return tend(folder, net, optimizer, one, 500, held_out(net, lambda: sum(terms(tx))))


@healthy(0.4)
def pollen_scattered_on_an_oval_by_two_nets_at_play(folder):
    seeded(14527)
    sides = F.normalize(torch.randn(2, 16), dim=0)

    def pollen(rows):
        angle = 6.2832 * torch.rand(rows)
        return torch.stack([1.5 * angle.cos() + 0.5, angle.sin()], 1) + 0.05 * torch.randn(rows, 2)

    make, judge = dense(4, 64, 64, 2), dense(2, 64, 64, 1, act=nn.SiLU)
    of_make = torch.optim.Adam(make.parameters(), 1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 3e-3, betas=(0.5, 0.999))

    def judge_loss():
        real, made = judge(pollen(128)), judge(make(torch.randn(128, 4)).detach())
        return F.softplus(-real).mean() + F.softplus(made).mean()

    def make_loss():
        return F.softplus(-judge(make(torch.randn(128, 4)))).mean()

    @torch.no_grad()
    def score():
        real, made = ((rows @ sides).sort(0).values for rows in (pollen(1000), make(torch.randn(1000, 4))))
        return float((real - made).abs().mean())

    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600, score)


@healthy(0.4)
def orchids_of_a_new_house_with_a_slow_body_and_a_quick_head(folder):
    seeded(14528)
    lift = torch.randn(6, 24)

    def flowers(rows, kinds):
        y = torch.randint(len(kinds), (rows,))
        return ((kinds[y] + 0.5 * torch.randn(rows, 6)) @ lift / 2).sin() + 0.2 * torch.randn(rows, 24), y

    old, new = torch.randn(20, 6), torch.randn(8, 6)
    body, head = nn.Sequential(dense(24, 128, 64), nn.ReLU()), nn.Linear(64, 20)
    of_old = torch.optim.Adam([*body.parameters(), *head.parameters()], 2e-3)
    draw_old = rounds(100, *flowers(6000, old))
    for _ in range(300):
        of_old.zero_grad()
        flower, kind = draw_old()
        F.cross_entropy(head(body(flower)), kind).backward()
        of_old.step()

    (x, y), (tx, ty) = flowers(1500, new), flowers(1500, new)
    net, draw = nn.Sequential(body, nn.Linear(64, 8)), rounds(50, x, y)
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 2e-4}, {"params": net[1].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    validate = now_and_then(net, 30, judged(net, tx, ty))

    def loss_of(step):
        flower, kind = draw()
        said = net(flower)
        right = (said.argmax(1) == kind).float().mean()
        return F.cross_entropy(said, kind), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.5)
def letters_of_damage_sorted_to_their_desks_whatever_their_length(folder):
    seeded(14529)
    desks, words, most = 3, 31, 18

    def letters(rows):
        """A letter speaks of its own desk in half of its words; 0 is padding."""
        desk, length = torch.randint(desks, (rows,)), torch.randint(6, most + 1, (rows,))
        own = 1 + desk[:, None] * 10 + torch.randint(10, (rows, most))
        any_word = torch.randint(1, words, (rows, most))
        word = torch.where(torch.rand(rows, most) < 0.4, own, any_word)
        return word * (torch.arange(most) < length[:, None]), length, desk

    class Sorter(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(words, 24, padding_idx=0)
            self.memory = nn.GRU(24, 32, batch_first=True)
            self.out = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, desks))

        def forward(self, letter, length):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.word(letter), length, batch_first=True, enforce_sorted=False
            )
            return self.out(self.memory(packed)[1][-1])

    train, (tx, tlength, ty) = letters(5000), letters(800)
    net, draw = Sorter(), rounds(50, *train)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def measure():
        said = net(tx, tlength)
        return {"val_loss": F.cross_entropy(said, ty), "val_accuracy": (said.argmax(1) == ty).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        letter, length, desk = draw()
        return F.cross_entropy(net(letter, length), desk), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(tx, tlength), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@healthy(0.3)
def where_a_raft_may_lie_as_a_mixture_of_three(folder):
    seeded(14530)

    def rafts(rows):
        x = torch.randn(rows, 5)
        turn = torch.where(torch.rand(rows) < 0.6, 1.0, -1.0)
        return x, turn * (1.5 + x[:, 0].sin()) + 0.5 * x[:, 1] + 0.3 * torch.randn(rows)

    (x, y), (tx, ty) = rafts(6000), rafts(1500)
    net, draw = dense(5, 64, 64, 9, act=nn.Tanh), rounds(128, x, y)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450, 1e-4)

    def unlikely(x, y):
        weight, middle, log_width = net(x).chunk(3, 1)
        told = torch.distributions.Normal(middle, log_width.clamp(-5, 3).exp()).log_prob(y[:, None])
        return -(weight.log_softmax(1) + told).logsumexp(1).mean()

    validate = now_and_then(net, 45, lambda: {"val_loss": unlikely(tx, ty)})

    def loss_of(step):
        return unlikely(*draw()), validate(step)

    score = held_out(net, lambda: unlikely(tx, ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)


@healthy(0.6)
def the_worth_of_each_turn_on_the_way_to_a_buoy(folder):
    seeded(14531)
    side, discount = 6, 0.8
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    places = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    buoy = torch.tensor([4, 1])

    def sail(place, move):
        arrived = (place + moves[move]).clamp(0, side - 1)
        return arrived, (arrived == buoy).all(1).float()

    def seen(place):
        return torch.cat([F.one_hot(place[:, 0], side), F.one_hot(place[:, 1], side)], 1).float()

    net = dense(2 * side, 64, 64, 4)
    late = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    rows = torch.arange(4 * len(places))
    every_place, every_move = places[rows // 4], rows % 4
    arrived, reached = sail(every_place, every_move)
    there, true = arrived[:, 0] * side + arrived[:, 1], torch.zeros(len(rows))
    for _ in range(60):
        true = reached + discount * (1 - reached) * true.view(-1, 4).amax(1)[there]

    def one(step):
        place, move = torch.randint(side, (128, 2)), torch.randint(4, (128,))
        after, reward = sail(place, move)
        with torch.no_grad():
            goal = reward + discount * (1 - reward) * late(seen(after)).amax(1)
        optimizer.zero_grad()
        value = net(seen(place)).gather(1, move[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, goal)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(late.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.05)
        return {"loss": float(loss), "mean_value": float(value.mean())}

    @torch.no_grad()
    def score():
        return float((net(seen(places)).flatten() - true).square().mean())

    return tend(folder, net, optimizer, one, 600, score)
