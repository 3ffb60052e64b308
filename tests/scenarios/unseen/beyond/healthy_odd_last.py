"""Sound trainings whose loss says little: rewards, growing tasks, moving targets, sums and limits."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend

# ---------------------------------------------------------------------------------------------------- longer and longer


class Repeater(nn.Module):
    """Hears a song of syllables and sings it again, told the right syllable after each (teacher forcing)."""

    def __init__(self, syllables, width=64):
        super().__init__()
        self.begin = syllables
        self.note = nn.Embedding(syllables + 1, 16)
        self.hear, self.sing = nn.GRU(16, width, batch_first=True), nn.GRU(16, width, batch_first=True)
        self.say = nn.Linear(width, syllables)

    def forward(self, song):
        memory = self.hear(self.note(song))[1]
        before = F.pad(song[:, :-1], (1, 0), value=self.begin)
        return self.say(self.sing(self.note(before), memory)[0])


@healthy()
def songs_repeated_by_a_young_bird(folder):
    seeded(2351)
    syllables = 6
    net = Repeater(syllables)
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)

    def repeat(length):
        song = torch.randint(syllables, (64, length))
        guess = net(song)
        loss = F.cross_entropy(guess.flatten(0, 1), song.flatten(), reduction="sum") / len(song)
        return loss, {"length": length, "right": (guess.argmax(2) == song).double().mean()}

    def loss_of(step):
        return repeat(2 + step // 90)

    score = score_of(lambda step: repeat(6)[0])
    return fit(folder, net, optimizer, loss_of, 540, score=score, before_step=clipped(net, 1.0))


# ----------------------------------------------------------------------------------------------------------- rewards


def weave(lint, damp, action):
    """An hour at slow or at full speed, or of cleaning: metres of cloth less the threads that break; the lint then."""
    speed = torch.tensor([0.5, 1.0, 0.0])[action]
    broken = torch.rand(len(lint)) < torch.sigmoid(10 * (lint + 0.3 * speed - 1)) * (speed > 0)
    dirtier = lint + 0.15 * speed * (1 + damp) + 0.02 * torch.rand(len(lint))
    cleaned = torch.where(action == 2, 0.05 * torch.rand(len(lint)), dirtier)
    return speed - 2.0 * broken, torch.where(broken, lint, cleaned)


class Replay:
    """The last thousands of hours, drawn from at random."""

    def __init__(self, room, width):
        self.rows, self.seen = torch.zeros(room, width), 0

    def add(self, rows):
        place = (self.seen + torch.arange(len(rows))) % len(self.rows)
        self.rows[place] = rows
        self.seen += len(rows)

    def draw(self, count):
        return self.rows[torch.randint(min(self.seen, len(self.rows)), (count,))]


@healthy()
def when_to_clean_a_loom(folder):
    seeded(2352)
    net, looms, patience = dense(2, 64, 64, 3), 32, 0.9
    target, replay = copy.deepcopy(net), Replay(8000, 6)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    lint, damp = torch.rand(looms), torch.rand(looms)

    def score(hours=60):
        lint, damp, cloth = torch.rand(256), torch.rand(256), 0.0
        with torch.no_grad():
            for _ in range(hours):
                reward, lint = weave(lint, damp, net(torch.stack([lint, damp], 1)).argmax(1))
                cloth += reward.mean() / hours
        return 1 - cloth

    def work(chance):
        nonlocal lint
        state = torch.stack([lint, damp], 1)
        with torch.no_grad():
            action = torch.where(torch.rand(looms) < chance, torch.randint(3, (looms,)), net(state).argmax(1))
        reward, lint = weave(lint, damp, action)
        lint = torch.where(torch.rand(looms) < 0.02, torch.rand(looms), lint)
        replay.add(torch.cat([state, action[:, None], reward[:, None], lint[:, None], damp[:, None]], 1))
        return reward.mean()

    for _ in range(40):
        work(1.0)

    def one(step):
        reward = work(max(0.05, 1 - step / 400))
        state, action, earned, later = replay.draw(128).split([2, 1, 1, 2], 1)
        with torch.no_grad():
            promised = earned + patience * target(later).gather(1, net(later).argmax(1, keepdim=True))
        loss = F.smooth_l1_loss(net(state).gather(1, action.long()), promised)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for held, p in zip(target.parameters(), net.parameters(), strict=True):
                held.lerp_(p, 0.02)
        return {"td_loss": loss, "reward": reward, "q": promised.mean()}

    return tend(folder, net, optimizer, one, 800, score)


class Firing:
    """Many kilns at once, each to be led up to its own heat and held there."""

    def __init__(self, kilns):
        self.goal, self.pace = 0.6 + 0.6 * torch.rand(kilns), 0.05 + 0.05 * torch.rand(kilns)
        self.heat, self.hour = 0.2 * torch.rand(kilns), 0

    def wanted(self, hour):
        return torch.minimum(self.pace * hour, self.goal)

    def state(self):
        now, soon = self.wanted(self.hour), self.wanted(self.hour + 1)
        return torch.stack([5 * (self.heat - now), 10 * (soon - now), self.heat], 1)

    def burn(self, gas):
        self.heat = self.heat + 0.06 * gas - 0.1 * self.heat + 0.01 * torch.randn(len(self.heat))
        self.hour += 1
        return torch.exp(-(((self.heat - self.wanted(self.hour)) / 0.1) ** 2))


def to_go(rewards, patience):
    """What is still to come after each hour."""
    total, all_of = torch.zeros_like(rewards[0]), []
    for reward in reversed(rewards):
        total = reward + patience * total
        all_of.append(total)
    return torch.stack(all_of[::-1])


@healthy()
def gas_for_the_firing_of_a_kiln(folder):
    seeded(2353)
    net = nn.ModuleDict({"actor": dense(3, 48, 48, 5, act=nn.Tanh), "critic": dense(3, 48, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def burnt(kilns, hours=24):
        kiln, diary = Firing(kilns), []
        with torch.no_grad():
            for _ in range(hours):
                state = kiln.state()
                gas = torch.multinomial(net["actor"](state).softmax(1), 1)[:, 0]
                diary.append((state, gas, kiln.burn(gas)))
        return [torch.stack(part) for part in zip(*diary, strict=True)]

    def loss_of(step):
        state, gas, reward = burnt(48)
        choice = torch.distributions.Categorical(logits=net["actor"](state))
        log_chance, doubt, hoped = choice.log_prob(gas), choice.entropy(), net["critic"](state)[:, :, 0]
        gained = to_go(list(reward), 0.8)
        better = (gained - hoped).detach()
        critic = F.mse_loss(hoped, gained)
        loss = -(log_chance * better).mean() + 0.5 * critic - 0.01 * doubt.mean()
        return loss, {"reward": reward.mean(), "critic": critic.detach(), "entropy": doubt.mean().detach()}

    score = score_of(lambda step: 1 - burnt(128)[2].mean(), times=2)
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 0.5))


# ----------------------------------------------------------------------------------------------- its own moving target


@healthy()
def olives_seen_in_two_lights(folder):
    seeded(2354)
    colour, glare = torch.randn(2, 24), torch.randn(4, 24)
    encoder = dense(24, 64, 16)
    online = nn.Sequential(encoder, dense(16, 64, 16, norm=nn.BatchNorm1d))
    target, guess = copy.deepcopy(online).requires_grad_(False), dense(16, 64, 16, norm=nn.BatchNorm1d)
    net = nn.ModuleDict({"online": online, "guess": guess})
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)

    def look(ripeness):
        rows = len(ripeness)
        return (ripeness @ colour).tanh() + torch.randn(rows, 4) @ glare + 0.1 * torch.randn(rows, 24)

    def score():
        known, asked = torch.randn(800, 2), torch.randn(400, 2)
        with torch.no_grad():
            near = F.normalize(encoder(look(asked)), dim=1) @ F.normalize(encoder(look(known)), dim=1).T
        return (known[near.argmax(1)] - asked).square().mean()

    def loss_of(step):
        ripeness = torch.randn(256, 2)
        one, other = look(ripeness), look(ripeness)
        said = [F.normalize(guess(online(view)), dim=1) for view in (one, other)]
        with torch.no_grad():
            held = [F.normalize(target(view), dim=1) for view in (other, one)]
        return sum(2 - 2 * (a * b).sum(1).mean() for a, b in zip(said, held, strict=True)) / 2

    @torch.no_grad()
    def follow(step):
        for kept, p in zip(target.parameters(), online.parameters(), strict=True):
            kept.lerp_(p, 0.02)

    return fit(folder, net, optimizer, loss_of, 400, score=score, after_step=follow)


# ------------------------------------------------------------------------------------------------- sums and assignments


@healthy()
def outcomes_of_draughts_endgames(folder):
    seeded(2355)
    worth = torch.tensor([0.0, 1.0, 2.5, -1.0, -2.5])
    row = torch.arange(32) // 4 / 7 - 0.5
    net = dense(32 * 4, 96, 96, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=2e-4, momentum=0.9)

    def loss_of(step):
        board = torch.randint(1, 5, (512, 32)) * (torch.rand(512, 32) < 0.3)
        tempo = ((board == 1) * row).sum(1) + ((board == 3) * row).sum(1)
        balance = worth[board].sum(1) + 2 * tempo
        outcome = (balance > -1.5).long() + (balance > 1.5).long()
        guess = net((F.one_hot(board, 5)[:, :, 1:].float() - 0.075).flatten(1))
        loss = F.cross_entropy(guess, outcome, reduction="sum")
        return loss, {"accuracy": (guess.argmax(1) == outcome).double().mean()}

    return fit(folder, net, optimizer, loss_of, 500)


class Motifs(nn.Module):
    """Each motif of a chart is drawn from a code of its own; how often it is knitted is learned, too."""

    def __init__(self, motifs, stitches):
        super().__init__()
        self.code, self.often = nn.Embedding(motifs, 12), nn.Parameter(torch.zeros(motifs))
        self.draw = dense(12, 48, stitches, act=nn.GELU)

    def forward(self, charts):
        stitch = self.draw(self.code.weight)
        purl, knit = F.logsigmoid(-stitch), F.logsigmoid(stitch)
        return charts @ knit.T + (1 - charts) @ purl.T + self.often.log_softmax(0)


@healthy()
def motifs_in_knitting_charts(folder):
    seeded(2356)
    pattern = (torch.rand(6, 64) < 0.4).float()
    motif = torch.multinomial(torch.tensor([5.0, 4, 3, 3, 2, 2]), 800, replacement=True)
    slipped = (torch.rand(800, 64) < 0.08).float()
    charts, net = (pattern[motif] - slipped).abs(), Motifs(9, 64)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    share = torch.full((800, 9), 1 / 9)

    def loss_of(step):
        joint = net(charts)
        if step % 4 == 0:
            share.copy_(joint.detach().softmax(1))
        return -(share * joint).sum(1).mean()

    score = score_of(lambda step: -net(charts).logsumexp(1).mean(), times=1)
    return fit(folder, net, optimizer, loss_of, 480, score=score)


# -------------------------------------------------------------------------------------------------------------- limits


@healthy()
def habits_of_snow_crystals_with_none_overlooked(folder):
    seeded(2359)
    net = nn.ModuleDict({"crystal": dense(4, 64, 64, 5, act=nn.SiLU)})
    net.price = nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam(net["crystal"].parameters(), lr=2e-3)
    bidder = torch.optim.SGD([net.price], lr=0.05, maximize=True)
    centre, often = 1.2 * torch.randn(5, 4), torch.tensor([0.4, 0.3, 0.2, 0.08, 0.02])

    def error(habit):
        cloud = centre[habit] + 0.8 * torch.randn(len(habit), 4)
        return F.cross_entropy(net["crystal"](cloud), habit)

    def common():
        return error(torch.multinomial(often, 128, replacement=True))

    def rare():
        return error(torch.full((64,), 4))

    def one(step):
        all_of, overlooked = common(), rare()
        loss = all_of + net.price * (overlooked - 0.4)
        net.zero_grad()
        loss.backward()
        optimizer.step()
        bidder.step()
        with torch.no_grad():
            net.price.clamp_(min=0)
        return {"loss": loss, "common": all_of, "rare": overlooked, "price": net.price.detach()}

    return tend(folder, net, [optimizer, bidder], one, 700, score_of(lambda step: common() + rare()))
