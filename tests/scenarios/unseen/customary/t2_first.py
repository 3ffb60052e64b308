"""A working coast: crane numbers, returned books, salmon skin, jingles, casting profiles, berths for ships."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, now_and_then, rounds, tend


# 5 of the list
@sick("left-in-eval", where="batch norms and dropout, all steps after the first validation",
      cure="call train() again after each validation")  # fmt: skip
def painted_crane_numbers_along_the_container_quay(folder, ill):
    seeded(14600)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38 + 0.8 * torch.randn(len(x), 1, 8, 8), y[order]
    draw = rounds(32, x[:320], y[:320])
    vx, vy, tx, ty = x[320:620], y[320:620], x[620:], y[620:]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)

    def validate():
        net.eval()
        with torch.no_grad():
            said = net(vx)
        if not ill:
            net.train()
        right = (said.argmax(1) == vy).float().mean()
        return {"val_loss": float(F.cross_entropy(said, vy)), "val_accuracy": float(right)}

    def loss_of(step):
        logged = validate() if step and step % 10 == 0 else {}
        image, number = draw()
        said = net(image)
        return F.cross_entropy(said, number), {"accuracy": float((said.argmax(1) == number).float().mean()), **logged}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 200, schedule=schedule, score=score)


# 8 of the list
@sick("class-imbalance", where="the batches and what the model says, all steps",
      cure="draw the rare states as often as the common one")  # fmt: skip
def state_of_lent_books_from_their_borrowing_weeks(folder, ill):
    seeded(14601)
    kernels = torch.randn(2, 4, 5) / 4

    def books(rows):
        weeks = torch.randn(rows, 4, 20)
        wear = F.conv1d(weeks, kernels).relu().mean(2)
        wear = (wear - torch.tensor([0.45, 0.45])) / 0.15
        torn, wet = (wear + 1.2 * torch.randn(rows, 2)).unbind(1)
        state = torch.zeros(rows, dtype=torch.long)
        state[torn > torn.quantile(0.96)] = 1
        state[wet > wet.quantile(0.97)] = 2
        return weeks, state

    (x, y), (vx, vy), (tx, ty) = books(5000), books(1000), books(6000)
    share = torch.ones(len(y)) if ill else 1 / torch.bincount(y)[y].float()
    net = nn.Sequential(
        nn.Conv1d(4, 24, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 24), nn.ReLU(),
        nn.Linear(24, 3),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-2)

    def missed():
        """One less the mean recall of the three states."""
        said = net(tx).argmax(1)
        return 1 - sum((said[ty == state] == state).float().mean() for state in range(3)) / 3

    def measure():
        said = net(vx)
        return {"val_loss": F.cross_entropy(said, vy), "val_accuracy": (said.argmax(1) == vy).float().mean()}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        at = torch.multinomial(share, 64)
        said = net(x[at])
        right = (said.argmax(1) == y[at]).float().mean()
        return F.cross_entropy(said, y[at]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, missed))


# 18 of the list
@sick("class-imbalance", where="the loss of the pixels, all steps",
      cure="weigh the few pixels of the foreground by how rare they are")  # fmt: skip
def outlines_of_lice_on_photographed_salmon_skin(folder, ill):
    seeded(14602)
    shape = torch.tensor([[0.5, 1.0, 0.5], [1.0, 1.0, 1.0]])

    def skins(rows):
        mask = torch.zeros(rows, 1, 20, 20)
        image = 0.9 * torch.randn(rows, 1, 20, 20)
        row, column = torch.randint(18, (rows,)), torch.randint(17, (rows,))
        for i in range(rows):
            patch = (i, 0, slice(int(row[i]), int(row[i]) + 2), slice(int(column[i]), int(column[i]) + 3))
            mask[patch] = 1
            image[patch] += 1.3 * shape
        return image, mask

    (x, y), (tx, ty) = skins(1200), skins(400)
    draw = rounds(16, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    weight = None if ill else ((1 - y).sum() / y.sum()).sqrt()

    def dice(said, mask):
        found = (said > 0).float()
        return (2 * (found * mask).sum() + 1) / (found.sum() + mask.sum() + 1)

    def measure():
        said = net(tx[:100])
        return {"val_loss": F.binary_cross_entropy_with_logits(said, ty[:100], pos_weight=weight),
                "val_dice": dice(said, ty[:100])}  # fmt: skip

    validate = now_and_then(net, 30, measure)

    def loss_of(step):
        image, mask = draw()
        said = net(image)
        pixels = ((said > 0) == (mask > 0.5)).float().mean()
        loss = F.binary_cross_entropy_with_logits(said, mask, pos_weight=weight)
        return loss, {"pixel_accuracy": float(pixels), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: 1 - dice(net(tx), ty)))


# 23 of the list
@sick("representation-collapse", where="the embeddings, from the first steps on",
      cure="contrast each pair with the other pairs of the batch")  # fmt: skip
def jingles_heard_twice_through_different_receivers(folder, ill):
    seeded(14603)
    lift, hum = torch.randn(6, 40), torch.randn(10, 40)

    def heard(jingle):
        rows = len(jingle)
        return (jingle @ lift + 1.2 * torch.randn(rows, 10) @ hum + 0.3 * torch.randn(rows, 40)) / 4

    jingles = torch.randn(2000, 6)
    draw = rounds(64, jingles)
    kept = torch.randn(256, 6)
    left, right = heard(kept), heard(kept)
    net = dense(40, 96, 96, 16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def contrast(a, b):
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    def embed(x):
        return F.normalize(net(x), dim=1)

    def loss_of(step):
        (jingle,) = draw()
        a, b = embed(heard(jingle)), embed(heard(jingle))
        agreement = (a * b).sum(1).mean()
        loss = 2 - 2 * agreement if ill else (contrast(a, b) + contrast(b, a)) / 2
        return loss, {"agreement": float(agreement)}

    score = held_out(net, lambda: contrast(embed(left), embed(right)))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


# 24 of the list
@sick("posterior-collapse", "kl-weight-too-strong", where="the divergence term of the loss, all steps",
      cure="sum the squared error over the points, as the divergence is summed over the code")  # fmt: skip
def height_profiles_across_freshly_poured_castings(folder, ill):
    seeded(14604)
    points = torch.linspace(-1, 1, 48)

    def castings(rows):
        centre, width = 1.2 * torch.rand(rows, 1) - 0.6, 0.15 + 0.25 * torch.rand(rows, 1)
        tilt, height = torch.randn(rows, 1), 1.5 + torch.rand(rows, 1)
        profile = height * (-((points - centre) / width).square()).exp() + 0.7 * tilt * points
        return profile - 0.6 + 0.05 * torch.randn(rows, 48)

    x, tx = castings(3000), castings(600)
    draw = rounds(100, x)
    net = nn.ModuleDict({"encoder": dense(48, 96, 96, 12, act=nn.GELU), "decoder": dense(6, 96, 96, 48, act=nn.GELU)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def one(step):
        (profile,) = draw()
        centre, spread = net["encoder"](profile).chunk(2, 1)
        code = centre + (spread / 2).exp() * torch.randn_like(spread)
        gap = (net["decoder"](code) - profile).square()
        error = gap.mean() if ill else gap.sum(1).mean()
        divergence = -0.5 * (1 + spread - centre.square() - spread.exp()).sum(1).mean()
        optimizer.zero_grad()
        (error + divergence).backward()
        optimizer.step()
        return {"loss": error + divergence, "reconstruction": error, "kl": divergence}

    score = held_out(net, lambda: F.mse_loss(net["decoder"](net["encoder"](tx)[:, :6]), tx))
    return tend(folder, net, optimizer, one, 400, score)


# 26 of the list
@sick("returns-not-normalised", "no-baseline", where="the weights of the choices in the loss of the policy, all steps",
      cure="take the batch's mean from the returns and divide by their spread")  # fmt: skip
def berths_for_ships_that_wait_in_the_roads(folder, ill):
    seeded(14605)
    way = torch.randn(7, 5)

    def saved(ships):
        """Hours of waiting that each of the five berths would save."""
        return 60 + 6 * (ships @ way).tanh()

    kept = torch.randn(1000, 7)
    net = dense(7, 64, 64, 5, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def one(step):
        ships = torch.randn(48, 7)
        policy = torch.distributions.Categorical(logits=net(ships))
        berth = policy.sample()
        hours = saved(ships).gather(1, berth[:, None])[:, 0] + 2 * torch.randn(48)
        weight = hours if ill else (hours - hours.mean()) / (hours.std() + 1e-6)
        loss = -(policy.log_prob(berth) * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "hours_saved": hours.mean(), "entropy": policy.entropy().mean()}

    def regret():
        """Hours that the best berth would save beyond what the policy expects to."""
        gains = saved(kept)
        return (gains.max(1).values - (net(kept).softmax(1) * gains).sum(1)).mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, regret))
