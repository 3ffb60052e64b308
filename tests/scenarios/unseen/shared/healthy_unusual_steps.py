"""Trainings with optimizers that one seldom meets, some of them written by hand."""

import torch
from nets import batches, digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, tend


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, h):
        x = self.one(h)
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return h + self.down(F.relu(self.up(self.two(h))).square())


class Lines(nn.Module):
    """Reads an image line by line."""

    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(0.02 * torch.randn(8, width))
        self.block = Block(width)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x) + self.place)).mean(1))


@healthy()
def meters_read_line_by_line(folder):
    seeded(3655)
    x, y = digits()
    net = Lines()
    matrices = [p for p in net.block.parameters() if p.ndim == 2]
    rest = [p for n, p in net.named_parameters() if not (n.startswith("block") and p.ndim == 2)]
    optimizers = [
        torch.optim.Muon(matrices, lr=4e-3, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=4e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.05, 120) for o in optimizers]

    def one(step):
        at = torch.randint(1400, (64,))
        out = net(x[at])
        loss = F.cross_entropy(out, y[at])
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return {"loss": loss, "accuracy": (out.argmax(1) == y[at]).float().mean()}

    return tend(folder, net, optimizers, one, 120, held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:])))


class Flattest(torch.optim.Optimizer):
    """SGD by the gradient that is found a little uphill (sharpness-aware minimization)."""

    def __init__(self, params, rho=0.05, **options):
        super().__init__(params, {"rho": rho, **options})
        self.base = torch.optim.SGD(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in params]).norm() + 1e-12
        kept = [p.clone() for p in params]
        for p in params:
            p.add_(p.grad, alpha=float(self.param_groups[0]["rho"] / norm))
        closure()
        for p, old in zip(params, kept, strict=True):
            p.copy_(old)
        self.base.step()
        return loss


@healthy()
def stamps_with_blotted_values(folder):
    seeded(3656)
    x, y = digits()
    batch = batches(64, seed=3656, noise=0.1)
    net = nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.GroupNorm(4, 24), nn.ReLU(), nn.Flatten(), nn.Linear(384, 10),
    )  # fmt: skip
    optimizer = Flattest(net.parameters(), rho=0.05, lr=0.05, momentum=0.9, weight_decay=5e-4)

    def loss_of(step):
        images, labels = batch(step)
        return F.cross_entropy(net(images), labels)

    return fit(
        folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(x), y)), closure=True
    )


@healthy()
def yields_of_a_vineyard(folder):
    seeded(3657)
    x = torch.randn(600, 5)
    rain, sun, slope, age, pruned = x.T
    y = (rain - 0.5 * rain.square() + sun * (1 + 0.4 * slope) + age.sin() + 0.3 * pruned)[:, None]
    y = y + 0.1 * torch.randn(600, 1)
    net = dense(5, 20, 1, act=nn.Tanh)
    optimizer = torch.optim.Rprop(net.parameters(), lr=1e-2, step_sizes=(1e-6, 0.5))

    def loss_of(step):
        loss = F.mse_loss(net(x[:450]), y[:450])
        return loss, {"mse": loss}

    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: F.mse_loss(net(x[450:]), y[450:])))


class Lovers(nn.Module):
    """What a reader thinks of a book: two tables, and what is printed on the back."""

    def __init__(self, readers, books, size=8):
        super().__init__()
        self.readers = nn.Embedding(readers, size, sparse=True)
        self.books = nn.Embedding(books, size, sparse=True)
        self.back = nn.Linear(6, 1, bias=False)
        for table in (self.readers, self.books):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, reader, book, printed):
        return (self.readers(reader) * self.books(book)).sum(1) + self.back(printed[book])[:, 0]


@healthy()
def books_that_a_reader_prefers(folder):
    seeded(3658)
    tastes, themes, printed = torch.randn(150, 3), torch.randn(200, 3), torch.randn(200, 6)
    told = printed @ torch.randn(6) * 0.5
    net = Lovers(150, 200)
    optimizers = [
        torch.optim.SparseAdam([*net.readers.parameters(), *net.books.parameters()], lr=1e-2),
        torch.optim.Adam(net.back.parameters(), lr=1e-2),
    ]

    def draw(n):
        reader, a, b = torch.randint(150, (n,)), torch.randint(200, (n,)), torch.randint(200, (n,))
        liking = ((themes[a] - themes[b]) * tastes[reader]).sum(1) + told[a] - told[b]
        first = torch.rand(n) < (3 * liking).sigmoid()
        return reader, torch.where(first, a, b), torch.where(first, b, a)

    def ahead(n):
        reader, better, worse = draw(n)
        return net(reader, better, printed) - net(reader, worse, printed)

    def one(step):
        lead = ahead(256)
        loss = -F.logsigmoid(lead).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return {"bpr_loss": loss, "ordered_right": (lead > 0).float().mean()}

    return tend(folder, net, optimizers, one, 700, held_out(net, lambda: -F.logsigmoid(ahead(4000)).mean()))


class Langevin(torch.optim.Optimizer):
    """A draw from the posterior: half a step down the whole potential, and noise."""

    def __init__(self, params, lr, rows, precision=1.0):
        super().__init__(params, {"lr": lr, "rows": rows, "precision": precision})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            size = group["lr"]
            for p in group["params"]:
                drift = group["rows"] * p.grad + group["precision"] * p
                p.add_(drift, alpha=-size / 2).add_(torch.randn_like(p), alpha=size**0.5)


@healthy()
def mushrooms_judged_with_doubt(folder):
    seeded(3659)
    x = torch.randn(1600, 3)
    right = (x[:, 0] * x[:, 1] + x[:, 2].abs() - 0.8 + 0.5 * x[:, 0]) * 6
    y = (torch.rand(1600) < right.sigmoid()).float()
    net = dense(3, 24, 1, act=nn.Tanh)
    optimizer = Langevin(net.parameters(), lr=6e-4, rows=1000)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + step / 300) ** -0.55)
    voted = []

    def loss_of(step):
        at = torch.randint(1000, (100,))
        return F.binary_cross_entropy_with_logits(net(x[at])[:, 0], y[at])

    def vote(step):
        if step >= 500 and step % 10 == 0:
            with torch.no_grad():
                voted.append(net(x[1000:])[:, 0].sigmoid())

    def score():
        with torch.no_grad():
            belief = torch.stack(voted).mean(0) if voted else net(x[1000:])[:, 0].sigmoid()
            return float(F.binary_cross_entropy(belief, y[1000:]))

    return fit(folder, net, optimizer, loss_of, 1000, score=score, after_step=vote, schedule=schedule)


class Shares(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.share = nn.Parameter(torch.full((kinds,), 1 / kinds))

    def forward(self, spectra):
        return spectra @ self.share


class Exponentiated(torch.optim.Optimizer):
    """Shares that are multiplied and made to sum to one again (mirror descent with entropy)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_((-group["lr"] * (p.grad - p.grad.min())).exp())
                p.div_(p.sum())


@healthy()
def a_perfume_told_by_its_oils(folder):
    seeded(3660)
    truth = torch.zeros(30)
    truth[torch.randperm(30)[:6]] = torch.tensor([0.3, 0.25, 0.2, 0.12, 0.08, 0.05])
    net = Shares(30)
    optimizer = Exponentiated(net.parameters(), lr=0.05)

    def loss_of(step, n=16, noise=0.05):
        spectra = torch.randn(n, 30)
        return F.mse_loss(net(spectra), spectra @ truth + noise * torch.randn(n))

    def score():
        with torch.no_grad():
            return float(loss_of(0, 2000, 0.0))

    return fit(folder, net, optimizer, loss_of, 1400, score=score)


@healthy()
def a_lens_measured_to_the_micron(folder):
    seeded(3661)
    x = torch.rand(700, 2, dtype=torch.float64) * 2 - 1
    r = x.square().sum(1, keepdim=True)
    y = r - 0.4 * r.square() + 0.2 * (4 * x[:, :1]).sin() * x[:, 1:] + 0.002 * torch.randn(700, 1, dtype=torch.float64)
    net = dense(2, 20, 20, 1, act=nn.Tanh).double()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1.0, max_iter=4, history_size=20, line_search_fn="strong_wolfe")

    def loss_of(step):
        return F.mse_loss(net(x[:500]), y[:500]) + 1e-7 * sum(p.square().sum() for p in net.parameters())

    return fit(
        folder, net, optimizer, loss_of, 100, score=held_out(net, lambda: F.mse_loss(net(x[500:]), y[500:]).sqrt()),
        closure=True,
    )  # fmt: skip
