"""Post office, dam and market: parcels an hour, streets, levels, cracks, baskets, prices, fruit, coins, queues."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import bandit, clipped, held_out, judged, now_and_then, rounds


@healthy(0.3)
def parcels_an_hour_at_the_counter(folder):
    seeded(14322)
    pull = torch.randn(9, 2) / 3

    def hours(rows):
        x = torch.randn(rows, 9)
        seen = x @ pull
        return x, torch.poisson((1 + 0.9 * seen[:, 0] + 0.6 * (2 * seen[:, 1]).sin()).exp())

    (x, y), (vx, vy) = hours(5000), hours(1500)
    draw = rounds(64, x, y)
    net = dense(9, 48, 48, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def misfit():
        """The mean deviance of the counts."""
        rate = net(vx)[:, 0].exp()
        return 2 * (torch.xlogy(vy, vy / rate) - vy + rate).mean()

    validate = now_and_then(net, 50, lambda: {"val_deviance": misfit()})

    def loss_of(step):
        hour, parcels = draw()
        return F.poisson_nll_loss(net(hour)[:, 0], parcels, log_input=True, full=True), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, misfit))


@healthy(0.4)
def delivery_districts_of_houses_by_their_neighbours(folder):
    seeded(14323)
    houses, districts = 400, 5
    home = torch.randint(districts, (houses,))
    same = home[:, None] == home[None]
    joined = torch.rand(houses, houses) < torch.where(same, 0.06, 0.006)
    joined = (joined.triu(1) | joined.triu(1).T).float() + torch.eye(houses)
    root = joined.sum(1).rsqrt()
    spread = root[:, None] * joined * root[None]
    x = 0.6 * torch.randn(districts, 16)[home] + torch.randn(houses, 16)
    order = torch.randperm(houses)
    known, unknown = order[:200], order[200:]

    class Streets(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 32), nn.Linear(32, districts)
            self.drop = nn.Dropout(0.3)

        def forward(self, x):
            return spread @ self.second(self.drop((spread @ self.first(x)).relu()))

    net = Streets()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3, weight_decay=5e-4)

    def measure():
        said = net(x)[unknown]
        right = (said.argmax(1) == home[unknown]).float().mean()
        return {"val_loss": F.cross_entropy(said, home[unknown]), "val_accuracy": right}

    validate = now_and_then(net, 20, measure)

    def loss_of(step):
        said = net(x)[known]
        right = (said.argmax(1) == home[known]).float().mean()
        return F.cross_entropy(said, home[known]), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: measure()["val_loss"]))


@healthy(0.5)
def the_lakes_level_six_hours_on(folder):
    seeded(14324)

    class Causal(nn.Module):
        """A dilated convolution that looks back only, around which the input is led."""

        def __init__(self, width, dilation):
            super().__init__()
            self.back = 2 * dilation
            self.look = nn.Conv1d(width, width, 3, dilation=dilation)

        def forward(self, x):
            return x + self.look(F.pad(x, (self.back, 0))).relu()

    def weeks(rows, length=54):
        hour = torch.arange(length)
        phase = 6.2832 * torch.rand(rows, 2, 1)
        period = torch.tensor([12.0, 24.0])[:, None] * (0.8 + 0.4 * torch.rand(rows, 2, 1))
        tide = (6.2832 * hour / period + phase).sin().sum(1)
        return (tide + 0.15 * torch.randn(rows, length))[:, None]

    draw, held = rounds(32, weeks(3000)), weeks(400)
    net = nn.Sequential(nn.Conv1d(1, 16, 1), *(Causal(16, 2**depth) for depth in range(4)), nn.Conv1d(16, 1, 1))
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def error(week):
        """What is said at each hour, a day after the first, of the hour that comes six later."""
        return F.mse_loss(net(week[..., :-6])[..., 24:], week[..., 30:])

    validate = now_and_then(net, 50, lambda: {"val_loss": error(held)})

    def loss_of(step):
        (week,) = draw()
        return error(week), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, lambda: error(held)))


@healthy(0.5)
def where_and_how_long_is_the_crack_in_the_dam_wall(folder):
    seeded(14325)
    place = torch.linspace(0, 1, 64)

    def walls(rows):
        """Strain along a fibre; half of the walls have a crack, with a middle and a length."""
        cracked = torch.randint(2, (rows,)).float()
        middle, length = 0.2 + 0.6 * torch.rand(rows), 0.05 + 0.15 * torch.rand(rows)
        bump = (1 - ((place - middle[:, None]) / length[:, None]).square()).relu() * cracked[:, None]
        strain = (2 * bump + 0.3 * torch.randn(rows, 64))[:, None]
        return strain / 0.6, cracked, torch.stack([(middle - 0.5) / 0.17, (length - 0.125) / 0.043], 1)

    class Inspector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv1d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2, padding=2),
                nn.ReLU(), nn.Flatten(), nn.Linear(24 * 16, 48), nn.ReLU(),
            )  # fmt: skip
            self.is_cracked, self.box = nn.Linear(48, 1), nn.Linear(48, 2)

        def forward(self, strain):
            body = self.body(strain)
            return self.is_cracked(body)[:, 0], self.box(body)

    draw, held = rounds(64, *walls(4000)), walls(800)
    net = Inspector()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def terms(strain, cracked, box):
        said, where = net(strain)
        gap = F.smooth_l1_loss(where, box, reduction="none").mean(1)
        return F.binary_cross_entropy_with_logits(said, cracked), (gap * cracked).sum() / cracked.sum()

    validate = now_and_then(net, 50, lambda: {"val_loss": sum(terms(*held))})

    def loss_of(step):
        found, placed = terms(*draw())
        return found + placed, {"class_loss": found.item(), "box_loss": placed.item(), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: sum(terms(*held))))


@healthy(0.4)
def baskets_by_pairs_of_bought_and_passed_over(folder):
    seeded(14326)
    shoppers, goods = 150, 100
    taste, make = torch.randn(shoppers, 4), torch.randn(goods, 4)
    chance = (1.5 * taste @ make.T).softmax(1)

    def baskets(each):
        bought = torch.multinomial(chance, each, replacement=True)
        return torch.arange(shoppers).repeat_interleave(each), bought.flatten()

    draw, (who, what) = rounds(256, *baskets(60)), baskets(15)
    net = nn.ModuleDict({"shoppers": nn.Embedding(shoppers, 12), "goods": nn.Embedding(goods, 12)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def preferred(who, what):
        """How far what was bought stands above one of the goods, drawn at random."""
        other = torch.randint(goods, what.shape)
        return (net["shoppers"](who) * (net["goods"](what) - net["goods"](other))).sum(1)

    def loss_of(step):
        shopper, bought = draw()
        ahead = preferred(shopper, bought)
        return -F.logsigmoid(ahead).mean(), {"pairs_right": float((ahead > 0).float().mean())}

    score = held_out(net, lambda: -F.logsigmoid(preferred(who, what)).mean())
    return fit(folder, net, optimizer, loss_of, 300, score=score)


@healthy(0.4)
def prices_at_two_ends_of_the_market_as_a_mixture(folder):
    seeded(14327)
    pull = torch.randn(6, 2) / 6**0.5

    def sales(rows):
        x = torch.randn(rows, 6)
        seen = x @ pull
        end = torch.where(torch.rand(rows) < 0.6, 1.0, -1.0)
        return x, end * (1 + 0.5 * seen[:, 0].sin()) + 0.4 * seen[:, 1] + 0.1 * torch.randn(rows)

    draw, (vx, vy) = rounds(64, *sales(5000)), sales(1500)
    net = dense(6, 48, 48, 9, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def surprise(x, price):
        weight, middle, width = net(x).chunk(3, dim=1)
        parts = torch.distributions.Normal(middle, F.softplus(width) + 1e-2)
        return -torch.logsumexp(weight.log_softmax(1) + parts.log_prob(price[:, None]), 1).mean()

    validate = now_and_then(net, 50, lambda: {"val_nll": surprise(vx, vy)})

    def loss_of(step):
        return surprise(*draw()), validate(step)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: surprise(vx, vy)))


@healthy(0.5)
def fruit_and_the_cries_that_sell_it(folder):
    seeded(14328)
    looks, cries = torch.randn(6, 20) / 6**0.5, torch.randn(6, 30) / 6**0.5

    def stalls(rows):
        fruit = torch.randn(rows, 6)
        return tuple((fruit @ way).tanh() + 0.1 * torch.randn(rows, way.shape[1]) for way in (looks, cries))

    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.look, self.cry = dense(20, 64, 16, act=nn.GELU), dense(30, 64, 16, act=nn.GELU)
            self.log_scale = nn.Parameter(torch.tensor(1 / 0.07).log())

        def forward(self, look, cry):
            look, cry = F.normalize(self.look(look), dim=1), F.normalize(self.cry(cry), dim=1)
            return self.log_scale.exp().clamp(max=100) * look @ cry.T

    draw, held = rounds(64, *stalls(4000)), stalls(256)
    net = Pairs()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)

    def both_ways(look, cry):
        logits, truth = net(look, cry), torch.arange(len(look))
        return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2

    def loss_of(step):
        return both_ways(*draw()), {"scale": net.log_scale.exp().item()}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: both_ways(*held)))


@healthy(0.5)
def which_coin_comes_most_often_in_the_till(folder):
    seeded(14329)
    coins, length = 5, 15

    def tills(rows):
        lean = 1.5 * torch.randn(rows, coins)
        row = torch.multinomial(lean.softmax(1), length, replacement=True)
        count = F.one_hot(row, coins).sum(1)
        return row, (count.float() - 0.01 * torch.arange(coins)).argmax(1)

    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.coin = nn.Embedding(coins, 32)
            self.place = nn.Parameter(0.02 * torch.randn(length, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 1, norm=nn.LayerNorm(32), enable_nested_tensor=False)
            self.head = nn.Linear(32, coins)

        def forward(self, row):
            return self.head(self.body(self.coin(row) + self.place).mean(1))

    draw, (vx, vy) = rounds(48, *tills(5000)), tills(1000)
    net = Counter()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, total_iters=25),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 275),
        ],
        milestones=[25],
    )
    validate = now_and_then(net, 50, judged(net, vx, vy))

    def loss_of(step):
        row, most = draw()
        return F.cross_entropy(net(row), most), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 300, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.15)
def queue_for_each_customer_learnt_from_how_it_went(folder):
    seeded(14330)
    worth = torch.randn(6, 4)
    net = dense(6, 48, 48, 4)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        customer = torch.randn(128, 6)
        choice = torch.distributions.Categorical(logits=net(customer))
        queue = choice.sample()
        reward = (customer @ worth).gather(1, queue[:, None])[:, 0] + 0.3 * torch.randn(128)
        advantage = (reward - reward.mean()) / reward.std()
        entropy = choice.entropy().mean()
        loss = -(choice.log_prob(queue) * advantage).mean() - 0.01 * entropy
        return loss, {"reward": float(reward.mean()), "entropy": entropy.item()}

    return fit(folder, net, optimizer, loss_of, 350, score=bandit(net, worth))


@healthy(0.5)
def chalked_numbers_on_crates_after_a_larger_reader(folder):
    seeded(14331)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float() / 16, torch.tensor(bunch.target)
    order, heat = torch.randperm(len(x)), 3.0
    x, y = (x[order] - 0.3) / 0.38, y[order]
    vx, vy = x[1400:], y[1400:]
    draw = rounds(64, x[:1400], y[:1400])
    reader, small = dense(64, 256, 10), dense(64, 32, 10)
    learning = torch.optim.AdamW(reader.parameters(), 2e-3, weight_decay=0.05)
    for _ in range(200):
        crate, number = draw()
        learning.zero_grad()
        F.cross_entropy(reader(crate), number).backward()
        learning.step()
    reader.requires_grad_(False).eval()
    optimizer = torch.optim.SGD(small.parameters(), 0.02, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    validate = now_and_then(small, 50, judged(small, vx, vy))

    def loss_of(step):
        crate, number = draw()
        said, wanted = small(crate), (reader(crate) / heat).log_softmax(1)
        hard = F.cross_entropy(said, number)
        soft = heat**2 * F.kl_div((said / heat).log_softmax(1), wanted, reduction="batchmean", log_target=True)
        return 0.5 * hard + 0.5 * soft, {"hard": hard.item(), "soft": soft.item(), **validate(step)}

    score = held_out(small, lambda: F.cross_entropy(small(vx), vy))
    return fit(folder, small, optimizer, loss_of, 250, score=score, schedule=schedule)
