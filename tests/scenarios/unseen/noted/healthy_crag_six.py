"""Healthy trainings of researchers: a constant learned beside its density, maps of a lava field by their likelihood."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import tend

# ------------------------------------------------------------------------------------------------------ told from noise


class Unnormalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = dense(2, 48, 48, 1, act=nn.SiLU)
        self.constant = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.net(x)[:, 0] - x.square().sum(1) / 8 - self.constant


@healthy()
def lengths_and_widths_of_gull_eggs(folder):
    seeded(3352)
    middles, spread = torch.tensor([[1.5, 1.0], [-1.5, 0.5], [0.0, -1.5]]), 0.6
    noise = torch.distributions.MultivariateNormal(torch.zeros(2), 4 * torch.eye(2))

    def eggs(rows):
        return middles[torch.randint(3, (rows,))] + spread * torch.randn(rows, 2)

    def truth(x):
        far = torch.cdist(x, middles).square() / (2 * spread**2)
        return (-far).logsumexp(1) - math.log(3 * 2 * math.pi * spread**2)

    net = Unnormalised()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.996)

    def one(step):
        optimizer.zero_grad()
        real, false = eggs(128), noise.sample((256,))
        for_real = net(real) - noise.log_prob(real) - math.log(2)
        for_false = net(false) - noise.log_prob(false) - math.log(2)
        loss = F.softplus(-for_real).mean() + 2 * F.softplus(for_false).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss, "constant": net.constant.detach(), "found_real": (for_real > 0).float().mean()}

    def score():
        x = eggs(2000)
        with torch.no_grad():
            return float((net(x) - truth(x)).abs().mean())

    return tend(folder, net, optimizer, one, 700, score)


# ----------------------------------------------------------------------------------------------------- kernels on a net


class Field(nn.Module):
    """A Gaussian process on what a small net makes of a place, with a learned length, height and noise."""

    def __init__(self):
        super().__init__()
        self.body = dense(2, 24, 24, 2, act=nn.Tanh)
        self.log_length, self.log_height = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(()))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def kernel(self, a, b):
        a, b = ((x + self.body(x)) / self.log_length.exp() for x in (a, b))
        far = (a[:, None] - b[None]).square().sum(2)
        return (2 * self.log_height - far / 2).exp()

    def root(self, x):
        noise = (2 * self.log_noise).exp() + 1e-6
        return torch.linalg.cholesky(self.kernel(x, x) + noise * torch.eye(len(x), dtype=x.dtype))


@healthy()
def warmth_under_a_lava_field(folder):
    seeded(3370)

    def ground(rows):
        x = 4 * torch.rand(rows, 2, dtype=torch.float64) - 2
        return x, (2 * x[:, 0]).sin() * (x[:, 1] / 2).cos() + torch.tanh(4 * (x[:, 0] + x[:, 1]))

    x, warmth = ground(120)
    warmth = warmth + 0.1 * torch.randn_like(warmth)
    new_x, new_warmth = ground(600)
    net = Field().double()
    own = [p for name, p in net.named_parameters() if name.startswith("log")]
    optimizer = torch.optim.Adam([{"params": net.body.parameters(), "lr": 3e-3}, {"params": own, "lr": 0.02}])

    def loss_of(step):
        root = net.root(x)
        z = torch.linalg.solve_triangular(root, warmth[:, None], upper=False)
        loss = z.square().sum() / 2 + root.diagonal().log().sum() + len(x) * math.log(2 * math.pi) / 2
        return loss / len(x), {"noise": net.log_noise.detach().exp(), "height": net.log_height.detach().exp()}

    def score():
        with torch.no_grad():
            guess = net.kernel(new_x, x) @ torch.cholesky_solve(warmth[:, None], net.root(x))
            return float(F.mse_loss(guess[:, 0], new_warmth))

    return fit(folder, net, optimizer, loss_of, 200, score=score)
