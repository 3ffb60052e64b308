"""Ordinary trainings that go well: a proximal policy, two autoencoders, contrast, tables, two heads, quantiles."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, held_out, rounds


class Lifts:
    """Many houses with a lift each: people wait on floors and wish to get to the ground floor."""

    floors, room, width = 6, 4, 13

    def __init__(self, count):
        self.at, self.aboard = torch.zeros(count, dtype=torch.long), torch.zeros(count)
        self.waiting = torch.randint(3, (count, self.floors)).float()
        self.waiting[:, 0] = 0

    def see(self):
        return torch.cat([F.one_hot(self.at, self.floors), self.waiting / 2, self.aboard[:, None] / self.room], 1)

    def move(self, chosen):
        """0 is down, 1 is up, 2 opens the door. The reward is minus a tenth of the people who are not there yet."""
        self.at = (self.at + (chosen == 1).long() - (chosen == 0).long()).clamp(0, self.floors - 1)
        here, opens = F.one_hot(self.at, self.floors), chosen == 2
        self.aboard = torch.where(opens & (self.at == 0), 0, self.aboard)
        steps_in = torch.minimum((self.waiting * here).sum(1), self.room - self.aboard) * opens
        self.aboard = self.aboard + steps_in
        calls = (torch.rand(self.waiting.shape) < 0.03).float()
        calls[:, 0] = 0
        self.waiting = (self.waiting - here * steps_in[:, None] + calls).clamp(max=4)
        return -0.1 * (self.aboard + self.waiting.sum(1))


class LiftPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy, self.worth = dense(Lifts.width, 64, 64, 3, act=nn.Tanh), dense(Lifts.width, 64, 64, 1, act=nn.Tanh)
        nn.init.orthogonal_(self.policy[-1].weight, 0.01)

    def choice(self, seen):
        return torch.distributions.Categorical(logits=self.policy(seen))


def ride(net, lifts, steps, discount=0.95, smooth=0.95):
    """What was seen and chosen, with what chance, its advantage (GAE) and return; and the mean reward."""
    seen, chosen, chance, rewards = [], [], [], []
    with torch.no_grad():
        for _ in range(steps):
            seen.append(lifts.see())
            choice = net.choice(seen[-1])
            chosen.append(choice.sample())
            chance.append(choice.log_prob(chosen[-1]))
            rewards.append(lifts.move(chosen[-1]))
        worth = net.worth(torch.stack([*seen, lifts.see()]))[..., 0]
    advantages, advantage = [], torch.zeros(len(lifts.at))
    for t in reversed(range(steps)):
        advantage = rewards[t] + discount * worth[t + 1] - worth[t] + discount * smooth * advantage
        advantages.insert(0, advantage)
    advantages = torch.stack(advantages)
    columns = (torch.stack(seen), torch.stack(chosen), torch.stack(chance), advantages, advantages + worth[:-1])
    return [column.flatten(0, 1) for column in columns], float(torch.stack(rewards).mean())


@healthy()
def lifts_that_fetch_people(folder):
    seeded(2310)
    net, lifts, batches = LiftPolicy(), Lifts(32), []
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-5)
    reward = 0.0

    def refill():
        nonlocal reward
        columns, reward = ride(net, lifts, 32)
        for _ in range(4):
            for rows in torch.randperm(1024).split(256):
                batches.append([column[rows] for column in columns])

    def loss_of(step):
        if not batches:
            refill()
        seen, chosen, chance, advantage, returned = batches.pop(0)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        choice = net.choice(seen)
        ratio = (choice.log_prob(chosen) - chance).exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        surprise, entropy = F.mse_loss(net.worth(seen)[:, 0], returned), choice.entropy().mean()
        return -gain + 0.5 * surprise - 0.01 * entropy, {"reward": reward, "entropy": float(entropy)}

    return fit(
        folder, net, optimizer, loss_of, 960,
        score=lambda: -ride(net, Lifts(128), 96)[1], before_step=clipped(net, 0.5),
    )  # fmt: skip


class Backbones(nn.Module):
    """A variational autoencoder of the torsion angles of a short stretch of protein."""

    def __init__(self, inputs, latent=6):
        super().__init__()
        self.encode, self.decode = dense(inputs, 96, 2 * latent), dense(latent, 96, inputs)

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + (0.5 * log_var).exp() * torch.randn_like(mean)
        misfit = (self.decode(z) - x).square().sum(1).mean() / (2 * 0.2**2)
        return misfit, 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1).mean()


@healthy()
def torsions_of_protein_fragments(folder):
    seeded(2311)
    residues, count, steps = 9, 3500, 700
    helix, strand = torch.tensor([-1.05, -0.8]), torch.tensor([-2.1, 2.3])
    turn_at, begins_as_helix = torch.randint(residues + 1, (count, 1)), torch.rand(count, 1) < 0.6
    in_helix = (torch.arange(residues) < turn_at) == begins_as_helix
    bend = 0.25 * torch.randn(count, 1, 2)
    angles = torch.where(in_helix[..., None], helix, strand) + bend + 0.15 * torch.randn(count, residues, 2)
    x = torch.cat([angles.sin(), angles.cos()], 2).flatten(1)
    net, draw = Backbones(x.shape[1]), rounds(64, x[:3000])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def loss_of(step):
        misfit, gap = net(draw()[0])
        return misfit + min(1.0, step / 200) * gap, {"misfit": float(misfit), "kl": float(gap)}

    return fit(folder, net, optimizer, loss_of, steps, score=held_out(net, lambda: sum(net(x[3000:]))))


@healthy()
def queues_at_a_ski_lift(folder):
    seeded(2312)
    count, quarters = 3000, 48
    hour = torch.linspace(0, 1, quarters)
    rush, lunch, leave = torch.rand(3, count, 1)
    opened = 0.1 + 0.1 * torch.rand(count, 1)
    arrive, depart = torch.exp(-((hour - opened - 0.1) ** 2) / 0.01), torch.exp(-((hour - 0.85) ** 2) / 0.008)
    queue = rush * arrive + 0.7 * leave * depart
    queue = queue + 0.6 - 0.8 * lunch * torch.exp(-((hour - 0.5) ** 2) / 0.01)
    queue = (queue - queue.mean()) / queue.std()
    net, draw = dense(quarters, 64, 12, 64, quarters), rounds(64, queue[:2500])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def rebuilt(clean):
        counted = torch.rand(clean.shape) > 0.2
        return F.mse_loss(net((clean + 0.3 * torch.randn(clean.shape)) * counted), clean)

    return fit(
        folder, net, optimizer, lambda step: rebuilt(draw()[0]), 700,
        score=held_out(net, lambda: rebuilt(queue[2500:])), schedule=ExponentialLR(optimizer, 0.998),
    )  # fmt: skip


def weld_seams(count, size=16):
    """Pictures of seams: how they run, how wide they are, and where their pores are."""
    along = torch.linspace(0, 1, size)
    start, slope, sway, width = torch.rand(4, count, 1)
    centre = 0.3 + 0.4 * start + 0.4 * (slope - 0.5) * along + 0.1 * (6.2832 * (along * 2 * sway + start)).sin()
    seam = torch.exp(-((along[:, None] - centre[:, None]) ** 2) / (0.01 + 0.02 * width[..., None]))
    pores = (torch.rand(count, size, size) < 0.03) * (seam > 0.5)
    return (seam - 0.8 * pores)[:, None]


def shaken(pictures):
    """Another look at the same seams: flipped, shifted, lit otherwise, and with noise."""
    if torch.rand(()) < 0.5:
        pictures = pictures.flip(-1)
    shift = [int(s) for s in torch.randint(-1, 2, (2,))]
    light = 0.8 + 0.4 * torch.rand(len(pictures), 1, 1, 1)
    return light * pictures.roll(shift, (2, 3)) + 0.1 * torch.randn(pictures.shape)


@healthy()
def weld_seams_told_apart(folder):
    seeded(2313)
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64)
    )
    net = nn.ModuleDict({"encoder": encoder, "projector": nn.Sequential(nn.ReLU(), nn.Linear(64, 32))})
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    seams = weld_seams(3000)
    draw = rounds(64, seams[:2600])

    def contrast(pictures):
        both = torch.cat([shaken(pictures), shaken(pictures)])
        z = F.normalize(net["projector"](net["encoder"](both)), dim=1)
        alike = (z @ z.T / 0.2).fill_diagonal_(-torch.inf)
        return F.cross_entropy(alike, torch.arange(len(both)).roll(len(pictures)))

    score = score_of(lambda step: contrast(seams[2600 + 50 * step : 2650 + 50 * step]))
    return fit(folder, net, optimizer, lambda step: contrast(draw()[0]), 400, score=score)


@healthy()
def evenings_of_overload(folder):
    seeded(2328)
    rows = 5000
    hour, (warmth, damp, before) = torch.rand(rows), torch.randn(3, rows)
    strain = (6.2832 * (hour - 0.5)).sin() + warmth.square() * 0.7 + 0.9 * before + 0.3 * damp * warmth
    over = (strain + 0.2 * torch.randn(rows) > strain.quantile(0.92)).float()
    x = torch.stack([(6.2832 * hour).sin(), (6.2832 * hour).cos(), warmth, damp, before, *torch.randn(3, rows)], 1)
    net = nn.Sequential(
        nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    draw, rarity = rounds(128, x[:4000], over[:4000]), (1 - over[:4000]).sum() / over[:4000].sum()

    def weighed(seen, wanted):
        return F.binary_cross_entropy_with_logits(net(seen)[:, 0], wanted, pos_weight=rarity)

    score = held_out(net, lambda: weighed(x[4000:], over[4000:]))
    return fit(folder, net, optimizer, lambda step: weighed(*draw()), 500, score=score)


class Declarations(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, 8) for count in kinds)
        self.body = dense(8 * len(kinds) + 3, 64, 32, 1)

    def forward(self, kinds, amounts):
        read = [table(kinds[:, at]) for at, table in enumerate(self.tables)]
        return self.body(torch.cat([*read, amounts], 1))[:, 0]


@healthy()
def declarations_worth_a_look(folder):
    seeded(2329)
    rows, (countries, goods, offices) = 6000, (30, 40, 8)
    kinds = torch.stack([torch.randint(count, (rows,)) for count in (countries, goods, offices)], 1)
    amounts = torch.randn(rows, 3)
    usual = torch.randn(goods)[kinds[:, 1]]
    doubt = 2 * torch.randn(countries)[kinds[:, 0]] + 2 * (amounts[:, 0] - usual).abs() + amounts[:, 1]
    wrong = (doubt + 0.3 * torch.randn(rows) > doubt.quantile(0.6)).float()
    net, draw = Declarations(countries, goods, offices), rounds(32, kinds[:5200], amounts[:5200], wrong[:5200])
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def loss_of(step):
        kind, amount, wanted = draw()
        logits = net(kind, amount)
        found = float(((logits > 0) == (wanted > 0)).float().mean())
        return F.binary_cross_entropy_with_logits(logits, wanted) / 2, {"accuracy": found}

    known = kinds[5200:], amounts[5200:]
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(*known), wrong[5200:]))
    return fit(folder, net, optimizer, loss_of, 600, score=score, accumulate=2)


@healthy()
def calls_to_a_help_desk(folder):
    seeded(2323)
    words, topics, count = 120, 5, 4000
    topic, usual = torch.randint(topics, (count,)), torch.randn(topics, words)
    text = torch.distributions.Categorical(logits=1.2 * usual[topic]).sample((20,)).T
    minutes = 0.4 * torch.randn(words)[text].sum(1) + 0.5 * torch.randn(topics)[topic]
    minutes = (minutes - minutes.mean()) / minutes.std() + 0.1 * torch.randn(count)
    net = nn.ModuleDict({
        "trunk": nn.Sequential(nn.EmbeddingBag(words, 32, mode="mean"), nn.Linear(32, 64), nn.ReLU()),
        "topic": nn.Linear(64, topics), "minutes": nn.Linear(64, 1),
    })  # fmt: skip
    optimizer, draw = torch.optim.Adam(net.parameters(), lr=2e-3), rounds(64, text[:3400], topic[:3400], minutes[:3400])

    def loss_of(step, batch=None):
        said, about, lasted = batch or draw()
        read = net["trunk"](said)
        topic_loss = F.cross_entropy(net["topic"](read), about)
        minutes_loss = F.mse_loss(net["minutes"](read)[:, 0], lasted)
        return topic_loss + minutes_loss, {"topic": float(topic_loss), "minutes": float(minutes_loss)}

    score = held_out(net, lambda: loss_of(0, (text[3400:], topic[3400:], minutes[3400:]))[0])
    return fit(folder, net, optimizer, loss_of, 500, score=score)


@healthy()
def how_leaky_a_rock_may_be(folder):
    seeded(2327)
    x = torch.randn(4000, 7)
    leaky = 1.5 * x[:, 0] - x[:, 1].abs() + (x[:, 2] * x[:, 3]) + 0.3 * (0.5 * x[:, 4]).exp() * torch.randn(4000)
    leaky = ((leaky - leaky.mean()) / leaky.std())[:, None]
    net, draw = dense(7, 64, 64, 3), rounds(64, x[:3400], leaky[:3400])
    optimizer, levels = torch.optim.Adam(net.parameters(), lr=3e-3), torch.tensor([0.1, 0.5, 0.9])
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=2)

    def pinball(seen, wanted):
        short = wanted - net(seen)
        return torch.maximum(levels * short, (levels - 1) * short).mean()

    def after_step(step):
        if step % 50 == 49:
            plateau.step(score())

    score = held_out(net, lambda: pinball(x[3400:], leaky[3400:]))
    return fit(folder, net, optimizer, lambda step: pinball(*draw()), 800, score=score, after_step=after_step)
