"""Healthy trainings of every day, second part: clicks, small tables, two tasks, transfer, masked tokens, a VAE."""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, healthy, seeded
from unseen.anew.healthy import Encoder, classified, conv_net, epochs, evaluated, framed, parted, right, two_groups

# -------------------------------------------------------------------------------------------------------------- tables


@healthy(0.1)
def offers_taken_wide_and_deep(folder):
    """Identities by a sum of weights and by tables before an MLP, numbers beside them; Adagrad, the log loss."""
    seeded(11)

    class WideAndDeep(nn.Module):
        def __init__(self, users=200, items=100, numbers=4, width=8):
            super().__init__()
            self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
            self.wide_users, self.wide_items = nn.Embedding(users, 1), nn.Embedding(items, 1)
            self.wide_numbers = nn.Linear(numbers, 1)
            self.deep = dense(2 * width + numbers, 64, 32, 1)
            for table in (self.users, self.items, self.wide_users, self.wide_items):
                nn.init.normal_(table.weight, std=0.05)

        def forward(self, user, item, numbers):
            wide = self.wide_users(user) + self.wide_items(item) + self.wide_numbers(numbers)
            deep = self.deep(torch.cat([self.users(user), self.items(item), numbers], 1))
            return (wide + deep)[:, 0]

    user, item, numbers = torch.randint(200, (24_000,)), torch.randint(100, (24_000,)), torch.randn(24_000, 4)
    liking = torch.randn(200)[user] + torch.randn(100)[item] - 1
    taste = (torch.randn(200, 3)[user] * torch.randn(100, 3)[item]).sum(1)
    y = torch.bernoulli((liking + taste + 2 * (numbers[:, 0] * numbers[:, 1]) + numbers[:, 2]).sigmoid())
    rows = user, item, numbers, y
    held = [column[20_000:] for column in rows]
    loader = DataLoader(TensorDataset(*(column[:20_000] for column in rows)), batch_size=128, shuffle=True)
    net = WideAndDeep()
    make = optim.Adagrad(net.parameters(), 0.05)

    def loss_of(user, item, numbers, y):
        return F.binary_cross_entropy_with_logits(net(user, item, numbers), y), {}

    return epochs(folder, net, make, loader, loss_of, 3, evaluated(net, lambda: loss_of(*held)[0]))


def table(data, held=100):
    """Columns and target of scikit-learn's tables, standardised by the rows to train on; these and those held out."""
    x, y = (torch.tensor(part, dtype=torch.float32) for part in (data.data, data.target))
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[held:].mean(0)) / x[held:].std(0)
    return x[held:], y[held:], x[:held], y[:held]


@healthy(0.5)
def cancers_by_a_small_net_with_dropout(folder):
    from sklearn.datasets import load_breast_cancer

    seeded(12)
    x, y, held_x, held_y = table(load_breast_cancer())
    net = nn.Sequential(
        nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

    def loss_of(x, y):
        out = net(x)[:, 0]
        return F.binary_cross_entropy_with_logits(out, y), {"accuracy": ((out > 0) == (y > 0)).float().mean()}

    score = evaluated(net, lambda: loss_of(held_x, held_y)[0])
    return epochs(folder, net, optim.Adam(net.parameters(), 1e-3), loader, loss_of, 25, score)


@healthy(0.2)
def diabetes_while_the_validation_is_watched(folder):
    """Four hundred rows: a small net, a little decay, the rate halved when the validation loss stays."""
    from sklearn.datasets import load_diabetes

    seeded(13)
    x, y, held_x, held_y = table(load_diabetes())
    middle, spread = y.mean(), y.std()
    y, held_y = (y - middle) / spread, (held_y - middle) / spread
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    make = optim.Adam(net.parameters(), 3e-3, weight_decay=1e-3)
    plan = optim.lr_scheduler.ReduceLROnPlateau(make, factor=0.5, patience=4)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    score = evaluated(net, lambda: F.mse_loss(net(held_x)[:, 0], held_y))
    kept = {"validation_loss": score()}

    def after_epoch(epoch):
        kept["validation_loss"] = score()
        plan.step(kept["validation_loss"])

    def loss_of(x, y):
        return F.mse_loss(net(x)[:, 0], y), dict(kept)

    return epochs(folder, net, make, loader, loss_of, 30, score, after_epoch=after_epoch)


# ------------------------------------------------------------------------------------------------------------ pictures


@healthy(0.5)
def a_digit_and_its_ink_from_one_trunk(folder):
    """Cross-entropy, and half a squared error of a standardised number: AdamW and a cosine."""
    seeded(14)
    train, test = parted()

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.digit, self.ink = conv_net(48), nn.Linear(48, 10), nn.Linear(48, 1)

        def forward(self, x):
            h = self.trunk(x).relu()
            return self.digit(h), self.ink(h)[:, 0]

    net = TwoHeads()
    ink = train[0].mean((1, 2, 3))
    middle, spread = ink.mean(), ink.std()
    loader = DataLoader(TensorDataset(*train), batch_size=64, shuffle=True)
    make = optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 12 * len(loader))

    def loss_of(x, y):
        digit, ink = net(x)
        of_digit = F.cross_entropy(digit, y)
        of_ink = F.mse_loss(ink, (x.mean((1, 2, 3)) - middle) / spread)
        return of_digit + 0.5 * of_ink, {"loss_digit": of_digit, "loss_ink": of_ink, "accuracy": right(digit, y)}

    return epochs(
        folder, net, make, loader, loss_of, 12, evaluated(net, lambda: loss_of(*test)[0]), schedule=plan
    )  # fmt: skip


def pretrained(net, x, y, steps=150):
    """Trained without a Watch, before the training that counts."""
    make = optim.Adam(net.parameters(), 3e-3)
    for _ in range(steps):
        at = torch.randint(len(x), (64,))
        make.zero_grad()
        F.cross_entropy(net(x[at]), y[at]).backward()
        make.step()


@healthy(0.5)
def later_digits_by_rates_that_fall_with_depth(folder):
    """Pretrained on 0 to 4, tuned for 5 to 9: each layer below the new head learns at 0.65 of the rate above it."""
    seeded(15)
    (x, y), test = parted()
    net = conv_net(5, wide=24)
    pretrained(net, x[y < 5], y[y < 5])
    net[-1] = nn.Linear(48, 5)
    layers = [part for part in reversed(net) if list(part.parameters())]
    depth = [0, 1, 1, 2, 2]  # the head; the upper BatchNorm and convolution; the lower ones
    groups = [{"params": p.parameters(), "lr": 2e-3 * 0.65**d} for p, d in zip(layers, depth, strict=True)]
    make = optim.AdamW(groups, weight_decay=0.05)
    loader = DataLoader(TensorDataset(x[y > 4], y[y > 4] - 5), batch_size=32, shuffle=True)
    late, kind = test[0][test[1] > 4], test[1][test[1] > 4] - 5
    plan = optim.lr_scheduler.CosineAnnealingLR(make, 10 * len(loader))
    score = evaluated(net, lambda: F.cross_entropy(net(late), kind))
    return epochs(folder, net, make, loader, classified(net), 10, score, schedule=plan)


class Transfer(nn.Module):
    """A body that stays in eval for as long as it is frozen, and a new head."""

    def __init__(self, body, width, classes):
        super().__init__()
        self.body, self.head = body.requires_grad_(False), nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.body(x))

    def train(self, mode=True):
        super().train(mode)
        if not next(self.body.parameters()).requires_grad:
            self.body.eval()
        return self


@healthy(0.4)
def the_head_first_and_the_body_at_a_tenth(folder):
    """Keras' guide to transfer: a new head on a frozen body; then all of it, the body as a group of its own."""
    seeded(16)
    train, test = parted()
    old = conv_net(wide=24)
    pretrained(old, *train)
    new = [((1 - x.transpose(2, 3)) + 0.1 * torch.randn_like(x), y) for x, y in (train, test)]
    net = Transfer(old[:-1], 48, 10)
    net.train()
    make = optim.Adam(net.head.parameters(), 3e-3)
    loader = DataLoader(TensorDataset(*(part[:800] for part in new[0])), batch_size=32, shuffle=True)

    def after_epoch(epoch):
        if epoch == 5:
            net.body.requires_grad_(True)
            make.add_param_group({"params": list(net.body.parameters()), "lr": 3e-4})

    score = evaluated(net, lambda: F.cross_entropy(net(new[1][0]), new[1][1]))
    return epochs(folder, net, make, loader, classified(net), 14, score, after_epoch=after_epoch)


@healthy(0.4)
def outlines_by_a_small_resnet_in_one_cycle(folder):
    """Smoothed labels, random shifts, SGD under OneCycleLR to 0.1."""
    seeded(17)

    class Block(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.one = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            self.two = nn.Sequential(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
            self.past = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))

        def forward(self, x):
            return (self.two(self.one(x)) + self.past(x)).relu()

    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        Block(8, 16, 2), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip
    x, _, y = framed(1500)
    x = x + 0.2 * torch.randn_like(x)
    loader = DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=48, shuffle=True)
    make = optim.SGD(net.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    plan = optim.lr_scheduler.OneCycleLR(make, 0.1, epochs=10, steps_per_epoch=len(loader))

    def loss_of(x, y):
        dx, dy = (int(torch.randint(-2, 3, ())) for _ in range(2))
        out = net(x.roll((dy, dx), (2, 3)))
        return F.cross_entropy(out, y, label_smoothing=0.1), {"accuracy": right(out, y)}

    score = evaluated(net, lambda: F.cross_entropy(net(x[1200:]), y[1200:]))
    return epochs(folder, net, make, loader, loss_of, 10, score, schedule=plan)


@healthy(0.25)
def digits_from_a_latent_that_is_charged_later(folder):
    """A VAE: the sum of cross-entropies per image, and the divergence with a weight that rises over half of the run."""
    seeded(18)
    train, test = parted()
    net = nn.ModuleDict({"encoder": dense(64, 128, 64, 16), "decoder": dense(8, 64, 128, 64)})
    loader = DataLoader(TensorDataset(train[0]), batch_size=64, shuffle=True)
    done = [0]

    def terms(x):
        middle, log_var = net["encoder"](x.flatten(1)).chunk(2, 1)
        out = net["decoder"](middle + (log_var / 2).exp() * torch.randn_like(middle))
        of_x = F.binary_cross_entropy_with_logits(out, x.flatten(1), reduction="none").sum(1).mean()
        return of_x, 0.5 * (middle.square() + log_var.exp() - 1 - log_var).sum(1).mean()

    def loss_of(x):
        done[0] += 1
        of_x, divergence = terms(x)
        loss = of_x + min(1.0, done[0] / 200) * divergence
        return loss, {"reconstruction": of_x, "kl": divergence}

    make = optim.Adam(net.parameters(), 1e-3)
    return epochs(folder, net, make, loader, loss_of, 18, evaluated(net, lambda: sum(terms(test[0]))))


# ----------------------------------------------------------------------------------------------------------- sequences


@healthy(0.2)
def tokens_of_a_chain_behind_masks(folder):
    """BERT's pretraining: of 15% of the tokens eight in ten are masked and one is another; the others do not count."""
    seeded(19)
    net = Encoder(kinds=17, out=17)
    ways = (3 * torch.randn(16, 16)).softmax(1)
    make = optim.AdamW(two_groups(net, 0.01), 2e-3, betas=(0.9, 0.98))
    plan = optim.lr_scheduler.LambdaLR(make, lambda s: min((s + 1) / 40, max(0.0, (350 - s) / 310)))

    def loss_of(step):
        chain = [torch.randint(16, (32,))]
        for _ in range(15):
            chain.append(torch.multinomial(ways[chain[-1]], 1)[:, 0])
        x = torch.stack(chain, 1) + 1
        chosen, lot = torch.rand(x.shape) < 0.15, torch.rand(x.shape)
        shown = torch.where(chosen & (lot < 0.8), 0, x)
        shown = torch.where(chosen & (lot > 0.9), torch.randint(1, 17, x.shape), shown)
        out = net.head(net(shown))
        loss = F.cross_entropy(out.flatten(0, 1), torch.where(chosen, x, -100).flatten(), ignore_index=-100)
        return loss, {"masked_accuracy": right(out[chosen], x[chosen])}

    def clip(step):
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    return fit(folder, net, make, loss_of, 350, before_step=clip, schedule=plan)
