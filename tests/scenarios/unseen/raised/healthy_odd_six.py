"""Healthy trainings in unusual ways: in private, over tasks, layer by layer, with learned weights, by a prompt."""

import torch
from nets import ALPHABET, Transformer, digits, pieces, predict
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from trainings import TREATMENT
from unseen import Outcome, dense, fit, healthy, score_of, seeded
from unseen.tasks import held_out, rounds, tend

import gradwatch


@healthy()
def answers_of_patients_kept_to_themselves(folder):
    """DP-SGD: each row's gradient is held to a norm of one, their sum gets noise (Abadi et al., 2016)."""
    seeded(2903)
    centres = torch.randn(4, 16)

    def collect(rows):
        y = torch.randint(4, (rows,))
        return centres[y] + 1.3 * torch.randn(rows, 16), y

    x, y = collect(4000)
    fresh_x, fresh_y = collect(1000)
    net = dense(16, 32, 4, act=nn.Tanh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    noise, most, rate = 1.0, 1.0, 256 / 4000

    def loss_of_one(weights, row, name):
        return F.cross_entropy(functional_call(net, weights, (row[None],)), name[None])

    slopes = vmap(grad(loss_of_one), in_dims=(None, 0, 0))

    def one(step):
        rows = torch.rand(4000) < rate
        weights = {name: p.detach() for name, p in net.named_parameters()}
        each = slopes(weights, x[rows], y[rows])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        share = (most / (norms + 1e-6)).clamp(max=1)
        for name, p in net.named_parameters():
            total = torch.einsum("b,b...->...", share, each[name]) + noise * most * torch.randn_like(p)
            p.grad = total / (rate * 4000)
        optimizer.step()
        with torch.no_grad():
            loss = F.cross_entropy(net(x[rows]), y[rows])
        return {"loss": loss, "clipped": (norms > most).float().mean()}

    return tend(folder, net, optimizer, one, 300, held_out(net, lambda: F.cross_entropy(net(fresh_x), fresh_y)))


@healthy()
def scales_of_many_kitchens(folder):
    """MAML: two steps on ten weighings of a kitchen's scale, and the gradient through them (Finn et al., 2017)."""
    seeded(2904)
    net = dense(1, 40, 40, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def draw(kitchens=8):
        turn, height = 3.1416 * torch.rand(kitchens, 1, 1), 0.5 + 2 * torch.rand(kitchens, 1, 1)
        x = 6 * torch.rand(kitchens, 20, 1) - 3
        return x, height * (x + turn).sin()

    def adapted(x, y):
        weights = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(functional_call(net, weights, (x,)), y)
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {name: p - 0.05 * slope for (name, p), slope in zip(weights.items(), slopes, strict=True)}
        return weights

    def loss_of(step):
        before, after = [], []
        for x, y in zip(*draw(), strict=True):
            weights = adapted(x[:10], y[:10])
            before.append(F.mse_loss(net(x[10:]), y[10:]).detach())
            after.append(F.mse_loss(functional_call(net, weights, (x[10:],)), y[10:]))
        return torch.stack(after).mean(), {"before": torch.stack(before).mean()}

    def score():
        return sum(float(loss_of(step)[0].detach()) for step in range(10)) / 10

    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Layer(nn.Linear):
    """Learns alone: rows with a true label shall excite it, rows with a false one shall not (Hinton, 2022)."""

    def forward(self, x):
        return F.relu(super().forward(x / (x.square().mean(1, keepdim=True).sqrt() + 1e-4)))

    def told_apart(self, true, false):
        high, low = (self(x).square().mean(1) - 1.0 for x in (true, false))
        return (F.softplus(-high) + F.softplus(low)).mean() / 2


@healthy()
def digits_named_without_a_way_back(folder):
    seeded(2905)
    x, y = digits()
    order = torch.randperm(len(x))
    x, y = x[order].flatten(1), y[order]
    layers = nn.ModuleList([Layer(74, 200), Layer(200, 200)])
    optimizers = [torch.optim.Adam(layer.parameters(), 2e-3) for layer in layers]
    draw = rounds(128, x[:1400], y[:1400])

    def marked(rows, names):
        return torch.cat([rows, 3 * F.one_hot(names, 10).float()], 1)

    def score():
        """The share of fresh rows that are misnamed."""
        with torch.no_grad():
            goodness = []
            for name in range(10):
                h = marked(x[1400:], torch.full((len(x) - 1400,), name))
                total = 0
                for layer in layers:
                    h = layer(h)
                    total = total + h.square().mean(1)
                goodness.append(total)
        return float((torch.stack(goodness).argmax(0) != y[1400:]).float().mean())

    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(layers, optimizers[0])}
    watch = gradwatch.watch(layers, optimizers, **options)
    with watch:
        for _ in range(500):
            rows, names = draw()
            wrong = (names + torch.randint(1, 10, names.shape)) % 10
            true, false = marked(rows, names), marked(rows, wrong)
            losses = []
            for layer, optimizer in zip(layers, optimizers, strict=True):
                loss = layer.told_apart(true, false)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    true, false = layer(true), layer(false)
                losses.append(loss.detach())
            watch.log(loss=sum(losses), **{f"layer_{i}": loss for i, loss in enumerate(losses)})
    return Outcome(gradwatch.open_history(watch.dir), first, score())


@healthy()
def reports_of_birds_of_which_some_are_made_up(folder):
    """A small net learns from a few checked rows how much each report counts (Shu et al., 2019)."""
    seeded(2906)
    centres = 1.2 * torch.randn(5, 12)

    def collect(rows, made_up):
        y = torch.randint(5, (rows,))
        x = centres[y] + torch.randn(rows, 12)
        return x, torch.where(torch.rand(rows) < made_up, torch.randint(5, (rows,)), y)

    reports, checked, fresh = collect(2000, 0.4), collect(120, 0.0), collect(1500, 0.0)
    net, weigher = dense(12, 48, 5), dense(1, 32, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    of_weigher = torch.optim.Adam(weigher.parameters(), 1e-3)
    draw, draw_checked = rounds(100, *reports), rounds(40, *checked)

    def weights_of(losses):
        return weigher(losses.detach()[:, None])[:, 0].sigmoid()

    score = held_out(net, lambda: F.cross_entropy(net(fresh[0]), fresh[1]))
    first = score()
    options = {"log": None, "dir": folder, "verbose": False, **TREATMENT[-1].begin(net, optimizer)}
    watch = gradwatch.watch(net, optimizer, name="namer", **options)
    of_weights = gradwatch.watch(weigher, of_weigher, name="weigher", run=watch, **options)
    with watch, of_weights:
        for _ in range(500):
            x, y = draw()
            names = dict(net.named_parameters())
            losses = F.cross_entropy(functional_call(net, names, (x,)), y, reduction="none")
            weighed = (weights_of(losses) * losses).mean()
            slopes = torch.autograd.grad(weighed, list(names.values()), create_graph=True)
            ahead = {name: p - 0.1 * slope for (name, p), slope in zip(names.items(), slopes, strict=True)}
            sure_x, sure_y = draw_checked()
            judged = F.cross_entropy(functional_call(net, ahead, (sure_x,)), sure_y)
            of_weigher.zero_grad()
            for p, slope in zip(weigher.parameters(), torch.autograd.grad(judged, list(weigher.parameters())),
                                strict=True):  # fmt: skip
                p.grad = slope
            of_weigher.step()
            of_weights.log(loss=judged)
            losses = F.cross_entropy(net(x), y, reduction="none")
            with torch.no_grad():
                counts = weights_of(losses)
            loss = (counts * losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss, counted=counts.mean())
    return Outcome(gradwatch.open_history(watch.dir.parent), first, score())


@healthy()
def a_reader_led_by_a_few_soft_words(folder):
    """A language model is learned first; then it stays as it is, and eight vectors before a text turn its task."""
    seeded(2907)
    model = Transformer(width=48, depth=2, seed=2907)
    learned = torch.optim.Adam(model.parameters(), 3e-3)
    loss_before = predict(model, pieces(length=23, seed=2907))
    for step in range(200):
        learned.zero_grad()
        loss_before(step).backward()
        learned.step()
    model.requires_grad_(False)
    vowels = torch.tensor([ALPHABET.index(c) for c in "aeiou"])
    draw = pieces(rows=32, length=16, seed=7907)

    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model
            self.words = nn.Parameter(model.embed.weight[torch.randint(len(ALPHABET), (8,))].clone())
            self.head = nn.Linear(48, 2)

        def forward(self, x):
            h = torch.cat([self.words.expand(len(x), -1, -1), self.model.embed(x)], 1)
            h = h + self.model.place[: h.shape[1]]
            mask = nn.Transformer.generate_square_subsequent_mask(h.shape[1])
            for block in self.model.blocks:
                h = block(h, src_mask=mask, is_causal=True)
            return self.head(self.model.norm(h)[:, -1])

    net = Prompted()
    groups = [{"params": [net.words], "lr": 0.03}, {"params": net.head.parameters(), "lr": 3e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)

    def loss_of(step):
        x, _ = draw(step)
        many = torch.isin(x, vowels).sum(1) > 4
        said = net(x)
        return F.cross_entropy(said, many.long()), {"accuracy": (said.argmax(1) == many).float().mean()}

    score = score_of(lambda step: loss_of(10_000 + step)[0])
    return fit(folder, net, optimizer, loss_of, 400, score=score)
