"""Sick trainings of libraries, museums and archives, drawn by lot from a list of mistakes: rates, returns, terms."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, in_turn, rounds, tend


def digits():
    """Images [N, 64] between 0 and 1 and what they show, in a drawn order."""
    images, shown = load_digits(return_X_y=True)
    order = torch.randperm(len(shown))
    return torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(shown)[order]


@sick("accumulation-not-averaged", "accumulation-not-divided",
      where="all layers, all steps: eight micro-batches add up under SGD with momentum", cure="loss / 8")  # fmt: skip
def humidity_behind_the_glass_case(folder, ill):
    seeded(12206)
    parts = 8
    net = dense(12, 64, 64, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    way = torch.randn(12, 4) / 2

    def cases(rows):
        x = torch.randn(rows, 12)
        return x, (x @ way).sin().sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1)

    draw = rounds(8, *cases(3200))

    def loss_of(step):
        x, y = draw()
        loss = F.mse_loss(net(x), y)
        return loss if ill else loss / parts

    tx, ty = cases(500)
    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 250, score=score, accumulate=parts)


@sick("schedule-too-short", "scheduler-stepped-per-batch", "epoch-schedule-stepped-per-batch",
      where="the learning rate: gone within the first tenth of the run",
      cure="a step of the schedule once an epoch")  # fmt: skip
def coats_of_arms_on_bookplates(folder, ill):
    seeded(12207)
    arms = 8
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, arms),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.1)
    shields = torch.randn(arms, 3, 4, 4)

    def plates(rows):
        y = torch.randint(arms, (rows,))
        x = F.interpolate(shields[y], size=12)
        shift = int(torch.randint(-1, 2, ()))
        return 0.5 * x.roll(shift, 3) + 1.0 * torch.randn(rows, 3, 12, 12), y

    draw = rounds(32, *plates(960))
    epoch = 960 // 32

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y), {"lr": scheduler.get_last_lr()[0]}

    def after_step(step):
        if ill or step % epoch == epoch - 1:
            scheduler.step()

    tx, ty = plates(300)
    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 8 * epoch, score=score, after_step=after_step)


@sick("returns-not-normalised", "no-baseline", where="the loss of the policy, all steps: large returns of one sign",
      cure="returns less their mean, over their standard deviation")  # fmt: skip
def a_cart_returned_to_its_stack(folder, ill):
    seeded(12208)
    net = dense(4, 32, 32, 4, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    moves = torch.tensor([[0.25, 0.0], [-0.25, 0.0], [0.0, 0.25], [0.0, -0.25]])
    gamma, length, carts = 0.9, 8, 16

    def walk(rows, choose):
        place, stack, rewards, logs = 2 * torch.rand(rows, 2) - 1, 2 * torch.rand(rows, 2) - 1, [], []
        for _ in range(length):
            policy = Categorical(logits=net(torch.cat([place, stack], 1)))
            move = choose(policy)
            place = (place + moves[move]).clamp(-1.2, 1.2)
            rewards.append(100 - 20 * (place - stack).norm(dim=1))
            logs.append(policy.log_prob(move))
        return torch.stack(rewards), torch.stack(logs)

    def one(step):
        rewards, logs = walk(carts, lambda policy: policy.sample())
        returns, running = [], torch.zeros(carts)
        for reward in reversed(rewards):
            running = reward + gamma * running
            returns.insert(0, running)
        returns = torch.stack(returns)
        if not ill:
            returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        loss = -(logs * returns).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": rewards.sum(0).mean()}

    def cost():
        rewards, _ = walk(400, lambda policy: policy.sample())
        return (100 - rewards).mean()

    return tend(folder, net, optimizer, one, 250, held_out(net, cost))


@sick("generator-starves", "discriminator-too-strong", where="the generator, soon after the start",
      cure="one step of the discriminator for each of the generator, at the same rate")  # fmt: skip
def medals_struck_for_the_gift_shop(folder, ill):
    seeded(12209)
    images, shown = digits()
    medals = 2 * images[shown == 0] - 1
    make = nn.Sequential(dense(16, 64, 64, 64), nn.Tanh())
    judge = dense(64, 128, 128, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-2 if ill else 2e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(64, 1), torch.zeros(64, 1)

    def made(rows=64):
        return make(torch.randn(rows, 16))

    def judge_loss():
        return criterion(judge(medals[torch.randint(len(medals), (64,))]), real) + criterion(
            judge(made().detach()), fake
        )

    def make_loss():
        return -criterion(judge(made()), fake)

    def score():
        with torch.no_grad():
            x = made(1000)
            return float((x.mean(0) - medals.mean(0)).norm() + (x.T.cov() - medals.T.cov()).norm())

    times = 5 if ill else 1
    return in_turn(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 300, score, rounds=times)


@sick("augmentation-changes-label", "labels-do-not-fit-inputs", "augmentation-changes-labels", "labels-mismatched",
      where="the batches, all steps: half of the images are mirrored, the coordinates are not",
      cure="x is mirrored along with the image")  # fmt: skip
def seals_located_on_a_charter(folder, ill):
    seeded(12210)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 64), nn.ReLU(), nn.Linear(64, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    grid = torch.linspace(-1, 1, 16)

    def charters(rows):
        seal = 1.6 * torch.rand(rows, 2) - 0.8
        disc = ((grid[:, None] - seal[:, 1, None, None]) ** 2 + (grid - seal[:, 0, None, None]) ** 2) / 0.05
        lines = 0.4 * (12 * grid[:, None]).sin() * torch.ones(16)
        return (2 * (-disc).exp() + lines + 0.2 * torch.randn(rows, 16, 16))[:, None], seal

    def augment(image, seal):
        mirrored = torch.rand(len(image)) < 0.5
        image = torch.where(mirrored[:, None, None, None], image.flip(3), image)
        if not ill:
            seal = torch.where(mirrored[:, None], seal * torch.tensor([-1.0, 1.0]), seal)
        return image + 0.05 * torch.randn_like(image), seal

    draw = rounds(32, *charters(1200))
    vx, vy = charters(200)

    def validate():
        net.eval()
        with torch.no_grad():
            loss = F.mse_loss(net(vx), vy)
        net.train()
        return {"val_loss": float(loss)}

    def loss_of(step):
        image, seal = augment(*draw())
        return F.mse_loss(net(image), seal), validate() if step % 37 == 36 else {}

    tx, ty = charters(300)
    return fit(folder, net, optimizer, loss_of, 260, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Cards(nn.Module):
    """A variational autoencoder."""

    def __init__(self, size, width, code):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(size, width), nn.ReLU())
        self.mean, self.logvar = nn.Linear(width, code), nn.Linear(width, code)
        self.leave = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, size))

    def forward(self, x):
        h = self.enter(x)
        mean, logvar = self.mean(h), self.logvar(h)
        code = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        return self.leave(code), mean, logvar


@sick("posterior-collapse", "posterior-collapsed", "loss-terms-imbalanced", "loss-terms-unbalanced",
      where="the loss, all steps: the KL is a sum over the batch, the reconstruction a mean over all pixels",
      cure="both are sums for an example and means over the batch")  # fmt: skip
def catalogue_cards_in_eight_numbers(folder, ill):
    seeded(12211)
    x, _ = digits()
    net = Cards(64, 128, 8)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(64, x[:1500])

    def loss_of(step):
        (x,) = draw()
        again, mean, logvar = net(x)
        kl = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum()
        if ill:
            recon = F.binary_cross_entropy_with_logits(again, x)
        else:
            recon = F.binary_cross_entropy_with_logits(again, x, reduction="sum") / len(x)
            kl = kl / len(x)
        return recon + kl, {"recon": recon, "kl": kl}

    score = held_out(net, lambda: F.mse_loss(net(x[1500:])[0].sigmoid(), x[1500:]))
    return fit(folder, net, optimizer, loss_of, 350, score=score)
