"""Six trainings: bunker oil, finger paintings, tugs, a small sorter of leaves, freight bills, holes in leather."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, now_and_then, rounds


class Tank(nn.Module):
    """Reads what goes in and out of a tank, hour by hour, and says what is left in it."""

    def __init__(self, width):
        super().__init__()
        self.memory = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(width, 1)
        nn.init.eye_(self.memory.weight_hh_l0)
        nn.init.normal_(self.memory.weight_ih_l0, std=0.05)
        nn.init.zeros_(self.memory.bias_ih_l0)
        nn.init.zeros_(self.memory.bias_hh_l0)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])


# 25 of the list
@sick("exploding", "exploding-gradients", "no-gradient-clipping", "spike",
      where="the recurrent weights, the steps in which the gradient is a hundredfold",
      cure="gradients clipped to a norm of one")  # fmt: skip
def bunker_oil_left_after_thirty_hours_at_sea(folder, ill):
    seeded(15006)

    def logs(rows, hours=30):
        x = torch.randn(rows, hours, 2)
        return x, x[:, :, :1].sum(1) / hours**0.5

    (x, y), (tx, ty) = logs(6000), logs(800)
    draw = rounds(32, x, y)
    net = Tank(48)
    optimizer = torch.optim.SGD(net.parameters(), 0.005)
    before_step = None if ill else clipped(net, 1.0)

    def loss_of(step):
        log, left = draw()
        return F.mse_loss(net(log), left)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, before_step=before_step)


# 29 of the list
@sick("posterior-collapse", "kl-weight-too-large", where="the code and its divergence, all steps",
      cure="a weight that fits an error that is a mean over the pixels")  # fmt: skip
def finger_paintings_squeezed_into_a_short_code(folder, ill):
    seeded(15007)
    bunch = load_digits()
    x = torch.tensor(bunch.data).float()[torch.randperm(len(bunch.data))] / 16
    draw = rounds(64, x[:1500])
    seen = x[1500:]
    net = nn.ModuleDict({"encoder": dense(64, 128, 16), "decoder": nn.Sequential(dense(8, 128, 64), nn.Sigmoid())})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    beta = 1.0 if ill else 1e-3

    def loss_of(step):
        (painting,) = draw()
        mu, logvar = net["encoder"](painting).chunk(2, 1)
        again = net["decoder"](mu + (0.5 * logvar).exp() * torch.randn_like(mu))
        recon = F.mse_loss(again, painting)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum(1).mean()
        return recon + beta * kl, {"recon": float(recon), "kl": float(kl)}

    def error():
        return F.mse_loss(net["decoder"](net["encoder"](seen)[:, :8]), seen)

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, error))


# 31 of the list
@sick("no-target-network", "values-overestimated", where="the values, more and more over the steps",
      cure="what is bootstrapped from is a copy that is renewed every so often")  # fmt: skip
def tugs_that_wait_or_tow_between_berths(folder, ill):
    seeded(15008)
    berths, gamma = 12, 0.95
    feature = torch.cat([torch.eye(berths + 1), torch.ones(berths + 1, 1)], 1)
    feature[-1] *= 2
    place = torch.randint(berths, (4000,))
    place[torch.rand(4000) < 0.05] = berths
    action = torch.randint(2, (4000,))
    after = torch.where(action == 1, torch.full_like(place, berths), torch.randint(berths, (4000,)))
    pay = torch.where(action == 1, 0.3, 0.1) + 0.05 * torch.randn(4000)

    truth = torch.zeros(berths + 1, 2)
    for _ in range(600):
        best = truth.max(1).values
        truth = torch.stack([0.1 + gamma * best[:berths].mean().expand(berths + 1),
                             0.3 + gamma * best[berths].expand(berths + 1)], 1)  # fmt: skip

    draw = rounds(64, place, action, pay, after)
    net = dense(berths + 2, 64, 2)
    old = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    def loss_of(step):
        if step % 20 == 0:
            old.load_state_dict(net.state_dict())
        at, did, paid, then = draw()
        with torch.no_grad():
            aim = paid + gamma * (net if ill else old)(feature[then]).max(1).values
        value = net(feature[at]).gather(1, did[:, None])[:, 0]
        return F.mse_loss(value, aim), {"mean_q": float(value.detach().mean())}

    score = held_out(net, lambda: (net(feature) - truth).square().mean())
    return fit(folder, net, optimizer, loss_of, 600, score=score, before_step=clipped(net, 1.0))


# 34 of the list
@sick("negative-loss", "kl-div-without-log", where="the loss, all steps", cure="log_softmax for the student")
def small_sorter_that_learns_from_the_head_taster(folder, ill):
    seeded(15009)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    teacher = dense(64, 128, 128, 10)
    study = torch.optim.AdamW(teacher.parameters(), 1e-3, weight_decay=0.05)
    labelled = rounds(64, x[:1400], y[:1400])
    for _ in range(200):
        rows, kind = labelled()
        study.zero_grad()
        F.cross_entropy(teacher(rows), kind, label_smoothing=0.05).backward()
        study.step()
    teacher.eval().requires_grad_(False)

    draw = rounds(64, x[:1400])
    net = dense(64, 24, 10)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    heat = 2.0

    def loss_of(step):
        (rows,) = draw()
        told = (teacher(rows) / heat).softmax(1)
        said = net(rows) / heat
        said = said.softmax(1) if ill else said.log_softmax(1)
        return heat**2 * F.kl_div(said, told, reduction="batchmean")

    def apart():
        told = teacher(x[1400:]).log_softmax(1)
        return F.kl_div(net(x[1400:]).log_softmax(1), told, reduction="batchmean", log_target=True)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, apart))


# 35 of the list
@sick("targets-not-normalised", where="the last layer and the loss, all steps",
      cure="less the mean and divided by the standard deviation")  # fmt: skip
def freight_bills_in_dollars_per_container(folder, ill):
    seeded(15010)

    def bills(rows):
        x = torch.randn(rows, 7)
        dear = 9000 + 2500 * x[:, 0] + 1800 * x[:, 1].sin() * x[:, 2] + 1200 * (x[:, 3] > 0) * x[:, 4]
        return x, dear[:, None] + 100 * torch.randn(rows, 1)

    (x, y), (tx, ty) = bills(3000), bills(1000)
    middle, spread = (0.0, 1.0) if ill else (y.mean(), y.std())
    draw = rounds(64, x, (y - middle) / spread)
    net = dense(7, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def off():
        """The mean error in thousands of dollars."""
        return (net(tx) * spread + middle - ty).abs().mean() / 1000

    validate = now_and_then(net, 46, lambda: {"val_loss": F.mse_loss(net(tx), (ty - middle) / spread)})

    def loss_of(step):
        cargo, dear = draw()
        return F.mse_loss(net(cargo), dear), validate(step)

    return fit(folder, net, optimizer, loss_of, 460, score=held_out(net, off))


# 40 of the list
@sick("class-imbalance", where="the loss and the map that the model draws, all steps",
      cure="a dice term beside the cross-entropy")  # fmt: skip
def tick_holes_marked_on_pictures_of_leather(folder, ill):
    seeded(15011)

    def hides(rows, size=20):
        mask = torch.zeros(rows, 1, size, size)
        for i in range(rows):
            r, c = torch.randint(1, size - 2, (2,)).tolist()
            mask[i, 0, r : r + 2, c : c + 2] = 1
        return 0.9 * mask + 0.55 * torch.randn(rows, 1, size, size), mask

    (x, y), (tx, ty) = hides(600), hides(300)
    draw = rounds(16, x, y)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def dice(said, mask):
        said = said.sigmoid()
        return 1 - (2 * (said * mask).sum() + 1) / (said.sum() + mask.sum() + 1)

    def loss_of(step):
        hide, mask = draw()
        said = net(hide)
        bce = F.binary_cross_entropy_with_logits(said, mask)
        right = ((said > 0) == (mask > 0.5)).float().mean()
        loss = bce if ill else bce + dice(said, mask)
        return loss, {"pixel_accuracy": float(right)}

    def missed():
        """One less the overlap of the map with the truth."""
        said, true = net(tx) > 0, ty > 0.5
        return 1 - (said & true).sum() / (said | true).sum().clamp_min(1)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, missed))
