"""Sick trainings of bicycles, roads and city traffic, drawn by lot from a list of mistakes: clips, classes, rates."""

from __future__ import annotations

import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds, tend

import gradwatch


def with_validation(net, every, values):
    """`logged(step)`: what `values()` gives in eval mode, every so many steps."""

    def logged(step):
        if step % every:
            return {}
        net.eval()
        with torch.no_grad():
            found = values()
        net.train()
        return found

    return logged


@sick("clip-is-your-learning-rate", where="all layers, all steps: a norm of 0.01 is allowed under SGD",
      cure="a max_norm of 5")  # fmt: skip
def cars_counted_through_a_tunnel(folder, ill):
    seeded(12300)
    net = nn.Sequential(
        nn.Conv1d(2, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(3), nn.Flatten(), nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)

    def recordings(rows, length=32):
        time = torch.arange(float(length))
        near, far = torch.zeros(rows, length), torch.zeros(rows, length)
        count = torch.randint(1, 8, (rows,))
        for car in range(7):
            passes = (car < count).float()[:, None]
            at = length * torch.rand(rows, 1)
            near = near + passes * (-((time - at) ** 2) / 1.5).exp()
            far = far + passes * (-((time - at - 3) ** 2) / 6).exp()
        x = torch.stack([near, far], 1) + 0.1 * torch.randn(rows, 2, length)
        return x, ((count - 4) / 2).float()[:, None]

    draw = rounds(64, *recordings(2400))

    def loss_of(step):
        x, y = draw()
        return F.mse_loss(net(x), y)

    tx, ty = recordings(500)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    most = 0.01 if ill else 5.0
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, most))


@sick("class-imbalance", where="the loss, all steps: three in a hundred are positive",
      cure="a pos_weight of negatives over positives")  # fmt: skip
def falls_among_a_years_rides(folder, ill):
    seeded(12301)
    table, falls = make_classification(
        5000, 20, n_informative=8, n_redundant=4, n_clusters_per_class=2, weights=[0.97], class_sep=1.0, flip_y=0.01,
        random_state=int(torch.randint(10**6, ())),
    )  # fmt: skip
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(falls, dtype=torch.float32)
    x = (x - x[:3500].mean(0)) / x[:3500].std(0)
    weight = None if ill else (y[:3500] == 0).sum() / (y[:3500] == 1).sum()
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=weight)
    draw = rounds(64, x[:3500], y[:3500])
    tx, ty = x[3500:], y[3500:]
    logged = with_validation(
        net, 25, lambda: {"val_accuracy": float(((net(tx)[:, 0] > 0) == (ty > 0.5)).float().mean())}
    )

    def loss_of(step):
        bx, by = draw()
        return criterion(net(bx)[:, 0], by), logged(step)

    def balanced():
        each = F.binary_cross_entropy_with_logits(net(tx)[:, 0], ty, reduction="none")
        return (each[ty == 1].mean() + each[ty == 0].mean()) / 2

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, balanced))


@sick("entropy-bonus-negated", "entropy-wrong-sign", "wrong-sign",
      where="the loss of the policy, all steps: its entropy is added, and one detour is all that is ever tried",
      cure="the entropy is subtracted from the loss")  # fmt: skip
def a_cyclist_chooses_among_detours(folder, ill):
    seeded(12302)
    blocks, start, longest, gamma = 9, 1, 20, 0.97
    net = nn.ModuleDict({"actor": dense(blocks, 32, 2, act=nn.Tanh), "critic": dense(blocks, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    coefficient = 0.1

    def ride(rows):
        """Back to the slow road, at one end, or on to the new path, at the other: who takes it saves far more."""
        place, riding = torch.full((rows,), start), torch.ones(rows)
        seen = []
        for _ in range(longest):
            state = F.one_hot(place, blocks).float()
            with torch.no_grad():
                way = torch.distributions.Categorical(logits=net["actor"](state)).sample()
            place = torch.where(riding > 0, place + 2 * way - 1, place)
            reward = riding * ((place == 0) * 0.5 + (place == blocks - 1) * 1.0)
            seen.append((state, way, reward, riding))
            place = place.clamp(0, blocks - 1)
            riding = riding * ((place > 0) & (place < blocks - 1))
        states, ways, rewards, ridden = (torch.stack(part) for part in zip(*seen, strict=False))
        returns, after = torch.zeros_like(rewards), torch.zeros(rows)
        for t in reversed(range(longest)):
            after = rewards[t] + gamma * after
            returns[t] = after
        return states, ways, returns, ridden, rewards.sum(0).mean()

    def one(step):
        states, ways, returns, ridden, reward = ride(32)
        policy = torch.distributions.Categorical(logits=net["actor"](states))
        value = net["critic"](states)[..., 0]
        advantage = (returns - value).detach()

        def over(each):
            return (each * ridden).sum() / ridden.sum()

        entropy = over(policy.entropy())
        policy_loss = -over(policy.log_prob(ways) * advantage)
        value_loss = over((returns - value).square())
        if ill:
            loss = policy_loss + 0.5 * value_loss + coefficient * entropy
        else:
            loss = policy_loss + 0.5 * value_loss - coefficient * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "reward": reward, "entropy": entropy}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: 1.1 - ride(400)[4]))


@sick("schedule-too-short", "scheduler-stepped-per-batch",
      where="all layers from step 30 on: the step size was meant in epochs and the schedule is stepped per batch",
      cure="one step of the schedule an epoch")  # fmt: skip
def way_signs_seen_from_the_saddle(folder, ill):
    seeded(12303)
    signs = 6
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.Linear(128, signs),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)
    plates = torch.randn(signs, 3, 6, 6)

    def views(rows):
        y = torch.randint(signs, (rows,))
        x = 0.8 * torch.randn(rows, 3, 14, 14)
        for i in range(rows):
            top, left = torch.randint(0, 9, (2,)).tolist()
            x[i, :, top : top + 6, left : left + 6] += plates[y[i]]
        return x, y

    epoch = 30
    draw = rounds(32, *views(epoch * 32))
    tx, ty = views(400)
    logged = with_validation(net, epoch, lambda: {"val_loss": float(F.cross_entropy(net(tx), ty))})

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y), {"lr": scheduler.get_last_lr()[0], **logged(step)}

    def after_step(step):
        if ill or (step + 1) % epoch == 0:
            scheduler.step()

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 10 * epoch, score=score, after_step=after_step)


@sick("judge-fed-the-makers-gradient", "gradients-accumulate",
      where="the judge, all steps: nothing zeroes its gradients, and the loss of the maker adds to them",
      cure="the gradients of the judge are zeroed right before its backward")  # fmt: skip
def rendezvous_points_of_cyclists(folder, ill):
    seeded(12304)
    middles = 1.5 * torch.stack([(6.2832 * torch.arange(5) / 5).cos(), (6.2832 * torch.arange(5) / 5).sin()], 1)
    netG, netD = dense(6, 64, 64, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    optimizerG = torch.optim.Adam(netG.parameters(), 1e-3, betas=(0.5, 0.999))
    optimizerD = torch.optim.Adam(netD.parameters(), 1e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real_label, fake_label = torch.ones(64, 1), torch.zeros(64, 1)

    def meetings(rows):
        return middles[torch.randint(5, (rows,))] + 0.15 * torch.randn(rows, 2)

    def score():
        with torch.no_grad():
            made, real = netG(torch.randn(600, 6)), meetings(600)
            within = (torch.cdist(made, made).mean() + torch.cdist(real, real).mean()) / 2
            return float(torch.cdist(made, real).mean() - within)

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(netG, optimizerG)}
    watchD = gradwatch.watch(netD, optimizerD, name="D", **options)
    watchG = gradwatch.watch(netG, optimizerG, name="G", run=watchD, **options)
    with watchD, watchG:
        for _ in range(400):
            if not ill:
                optimizerD.zero_grad()
            fake = netG(torch.randn(64, 6))
            lossD = criterion(netD(meetings(64)), real_label) + criterion(netD(fake.detach()), fake_label)
            lossD.backward()
            optimizerD.step()
            watchD.log(loss=lossD)
            lossG = criterion(netD(fake), real_label)
            optimizerG.zero_grad()
            lossG.backward()
            optimizerG.step()
            watchG.log(loss=lossG)
    return Outcome(gradwatch.open_history(watchD.dir.parent), first, score())


class Tagger(nn.Module):
    """A label for each word, by an LSTM in both directions."""

    def __init__(self, words, tags, width):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(2 * width, tags)

    def forward(self, sentence):
        return self.hidden2tag(self.lstm(self.embed(sentence))[0])


@sick("padding-in-loss", where="the loss, all steps: most positions are padding", cure="an ignore_index")
def parts_of_an_address_in_a_courier_app(folder, ill):
    seeded(12305)
    words, tags, longest = 60, 6, 40
    net = Tagger(words, tags, 32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    kind = torch.randint(1, tags, (words,))

    def addresses(rows):
        length = torch.randint(3, 9, (rows, 1))
        length[:: rows // 8] = longest
        inside = torch.arange(longest) < length
        text = torch.randint(1, words, (rows, longest))
        before = torch.cat([torch.zeros(rows, 1, dtype=torch.long), text[:, :-1]], 1)
        tag = torch.where(before % 3 == 0, kind[text] % (tags - 1) + 1, kind[text])
        return text * inside, tag * inside

    criterion = nn.CrossEntropyLoss() if ill else nn.CrossEntropyLoss(ignore_index=0)
    draw = rounds(32, *addresses(1600))

    def loss_of(step):
        text, tag = draw()
        return criterion(net(text).reshape(-1, tags), tag.reshape(-1))

    tx, ty = addresses(300)
    score = held_out(net, lambda: F.cross_entropy(net(tx).flatten(0, 1), ty.flatten(), ignore_index=0))
    return fit(folder, net, optimizer, loss_of, 160, score=score, before_step=clipped(net, 5.0))
