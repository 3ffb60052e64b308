"""Everyday trainings that recommend, search, compare, label and watch for what is odd."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import held_out, rounds, tend


class Tastes(nn.Module):
    """Ratings as products of what people like and what films have, beside their means."""

    def __init__(self, people, films, mean):
        super().__init__()
        self.people, self.films = nn.Embedding(people, 12), nn.Embedding(films, 12)
        self.of_people, self.of_films = nn.Embedding(people, 1), nn.Embedding(films, 1)
        for table in (self.people, self.films):
            nn.init.normal_(table.weight, std=0.1)
        for table in (self.of_people, self.of_films):
            nn.init.zeros_(table.weight)
        self.mean = nn.Parameter(torch.tensor(mean))

    def forward(self, person, film):
        product = (self.people(person) * self.films(film)).sum(1)
        return product + self.of_people(person)[:, 0] + self.of_films(film)[:, 0] + self.mean


@healthy()
def films_rated_by_subscribers(folder):
    seeded(3079)
    people, films = torch.randn(300, 4), torch.randn(120, 4)
    kind, good = 0.5 * torch.randn(300), 0.6 * torch.randn(120)
    chosen = torch.randperm(300 * 120)[:18000]
    person, film = chosen // 120, chosen % 120
    stars = 3.4 + (people[person] * films[film]).sum(1) / 2.5 + kind[person] + good[film]
    stars = (stars + 0.3 * torch.randn(18000)).round().clamp(1, 5)
    net = Tastes(300, 120, float(stars[:16000].mean()))
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-5)
    draw = rounds(256, person[:16000], film[:16000], stars[:16000])

    def loss_of(step):
        who, what, y = draw()
        loss = F.mse_loss(net(who, what), y)
        return loss, {"rmse": loss.sqrt()}

    score = held_out(net, lambda: F.mse_loss(net(person[16000:], film[16000:]), stars[16000:]))
    return fit(folder, net, optimizer, loss_of, 62 * 10, score=score)


class Towers(nn.Module):
    def __init__(self, words, size):
        super().__init__()
        self.words = nn.EmbeddingBag(words, 32)
        self.query, self.item = dense(32, 48, 24), dense(size, 48, 24, norm=nn.LayerNorm)
        self.scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, text, x):
        a, b = F.normalize(self.query(self.words(text)), dim=1), F.normalize(self.item(x), dim=1)
        return self.scale.exp().clamp(max=100) * a @ b.T


@healthy()
def goods_found_by_what_was_typed(folder):
    seeded(3080)
    lift, meaning = torch.randn(6, 20) / 6**0.5, 1.2 * torch.randn(6, 200)

    def searches(n):
        thing = torch.randn(n, 6)
        text = torch.multinomial((thing @ meaning).softmax(1), 8, replacement=True)
        return text, (thing @ lift).tanh() + 0.05 * torch.randn(n, 20)

    net = Towers(200, 20)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=40)
    cool = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 560)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cool], [40])
    draw, fresh = rounds(64, *searches(6400)), searches(64)

    def entropy(text, x):
        sims = net(text, x)
        right = torch.arange(len(x))
        return (F.cross_entropy(sims, right) + F.cross_entropy(sims.T, right)) / 2, sims

    def one(step):
        optimizer.zero_grad()
        loss, sims = entropy(*draw())
        loss.backward()
        optimizer.step()
        schedule.step()
        hit = (sims.argmax(1) == torch.arange(64)).float().mean()
        return {"loss": loss, "recall_at_1": hit, "temperature": net.scale.exp().detach()}

    return tend(folder, net, optimizer, one, 600, held_out(net, lambda: entropy(*fresh)[0]))


@healthy()
def staff_at_a_turnstile_by_their_faces(folder):
    seeded(3081)
    people, blend = torch.randn(80, 12), torch.randn(16, 48) / 4

    def faces(who):
        light = torch.randn(len(who), 4)
        return (torch.cat([people[who], light], 1) @ blend).tanh() + 0.15 * torch.randn(len(who), 48)

    net = dense(48, 96, 32, norm=nn.BatchNorm1d)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def triplets(least, most, n):
        one = torch.randint(least, most, (n,))
        other = least + (one - least + torch.randint(1, most - least, (n,))) % (most - least)
        return torch.cat([faces(one), faces(one), faces(other)])

    def loss_on(x):
        a, b, c = F.normalize(net(x), dim=1).chunk(3)
        return F.triplet_margin_loss(a, b, c, margin=0.5), (a - b).norm(dim=1).mean(), (a - c).norm(dim=1).mean()

    fresh = triplets(60, 80, 400)

    def loss_of(step):
        loss, near, far = loss_on(triplets(0, 60, 64))
        return loss, {"d_pos": near, "d_neg": far}

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: loss_on(fresh)[0]))


@healthy(gain=0.15)
def vacancies_in_the_order_of_their_fit(folder):
    seeded(3082)
    way = torch.randn(10, 10) / 3

    def lists(n):
        seeker, jobs = torch.randn(n, 1, 10).expand(n, 12, 10), torch.randn(n, 12, 10)
        fits = ((seeker @ way) * jobs).sum(2) * 0.7 + jobs[:, :, 0] + 0.3 * torch.randn(n, 12)
        return torch.cat([seeker, jobs, seeker * jobs], 2), fits.div(1.2).round().clamp(0, 4)

    net = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adamax(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 700)
    draw, fresh = rounds(32, *lists(6000)), lists(500)

    def listwise(x, grade):
        out = net(x)[:, :, 0]
        return -(grade.softmax(1) * out.log_softmax(1)).sum(1).mean(), out

    def ndcg(out, grade):
        cut = 1 / torch.arange(2.0, 14).log2()
        gains = 2**grade - 1
        got, best = gains.gather(1, out.argsort(1, descending=True)), gains.sort(1, descending=True)[0]
        return ((got * cut).sum(1) / (best * cut).sum(1).clamp(1e-6)).mean()

    def loss_of(step):
        x, grade = draw()
        loss, out = listwise(x, grade)
        return loss, {"ndcg": ndcg(out.detach(), grade)}

    score = held_out(net, lambda: listwise(*fresh)[0])
    return fit(folder, net, optimizer, loss_of, 700, score=score, schedule=schedule)


class Encoder(nn.Module):
    def __init__(self, words, width, topics):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(21, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.1, "gelu", batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, topics)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, x):
        h = self.drop(self.norm(self.words(x) + self.places.weight[: x.shape[1]]))
        return self.head(self.body(h, src_key_padding_mask=x == 0)[:, 0])


@healthy()
def themes_of_press_releases(folder):
    seeded(3083)
    typical = (3 * torch.randn(6, 180)).softmax(1)

    def releases(n):
        about = (torch.rand(n, 6) < 0.3).float()
        mix = about @ typical + 0.3 / 180
        text = torch.multinomial(mix / mix.sum(1, keepdim=True), 20, replacement=True) + 2
        text = text * (torch.arange(20) < torch.randint(10, 21, (n, 1)))
        return F.pad(text, (1, 0), value=1), about

    net = Encoder(182, 32, 6)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 30, (301 - s) / 271))
    draw, (x_val, y_val) = rounds(32, *releases(4000)), releases(400)

    def one(step):
        x, y = draw()
        out = net(x)
        loss = F.binary_cross_entropy_with_logits(out, y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        both = ((out > 0) * y).sum()
        return {"loss": loss, "micro_f1": 2 * both / ((out > 0).sum() + y.sum())}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(x_val), y_val))
    return tend(folder, net, optimizer, one, 300, score)


class Variational(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = dense(32, 64, 64, 8, act=nn.ELU), dense(4, 64, 64, 32, act=nn.ELU)

    def forward(self, x):
        middle, spread = self.encode(x).chunk(2, 1)
        z = middle + torch.randn_like(middle) * (spread / 2).exp()
        return self.decode(z), 0.5 * (middle**2 + spread.exp() - 1 - spread).sum(1).mean()


@healthy()
def hum_of_a_sound_pump(folder):
    seeded(3084)
    t = torch.arange(32) / 32

    def sounds(n):
        speed, phase, load = 2 + 2 * torch.rand(n, 1), 6.2832 * torch.rand(n, 1), 0.5 + torch.rand(n, 1)
        wave = (6.2832 * speed * t + phase).sin()
        return (load * wave + 0.5 * load * wave**2 + 0.1 * torch.randn(n, 32),)

    net = Variational()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    draw, (fresh,) = rounds(128, *sounds(6400)), sounds(1000)

    def terms(x):
        found, apart = net(x)
        return (found - x).square().sum(1).mean() / (2 * 0.1), apart

    def loss_of(step):
        error, apart = terms(*draw())
        beta = min(1.0, (step + 1) / 200)
        return error + beta * apart, {"reconstruction": error, "kl": apart, "beta": beta}

    return fit(folder, net, optimizer, loss_of, 900, score=held_out(net, lambda: sum(terms(fresh))))
