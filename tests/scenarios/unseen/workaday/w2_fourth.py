"""Ten more healthy ones of five houses: lamps, stock, fabrics, syrups, bylines, spray, visits, looms, pistes, words."""

from __future__ import annotations

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


class LampPost(nn.Module):
    """One trunk, and two heads: what fails next, and in how long."""

    def __init__(self, size, width, parts):
        super().__init__()
        self.trunk = nn.Sequential(dense(size, width, width), nn.ReLU())
        self.part, self.weeks = nn.Linear(width, parts), nn.Linear(width, 1)

    def forward(self, readings):
        shared = self.trunk(readings)
        return self.part(shared), self.weeks(shared)[:, 0]


@healthy(0.5)
def next_repair_of_a_rotating_lamp(folder):
    seeded(14922)
    wear, haste = torch.randn(16, 4) / 4, torch.randn(4)

    def lamps(rows):
        readings = torch.randn(rows, 16)
        worn = (readings @ wear).tanh()
        weeks = worn @ haste + 0.2 * torch.randn(rows)
        return readings, worn.argmax(1), (weeks - weeks.mean()) / weeks.std()

    train, (tx, part, weeks) = lamps(4000), lamps(800)
    draw, net = rounds(64, *train), LampPost(16, 64, 4)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)

    def terms(readings, part, weeks):
        said, when = net(readings)
        return F.cross_entropy(said, part), F.mse_loss(when, weeks)

    def measure():
        said, when = net(tx)
        return {"val_accuracy": (said.argmax(1) == part).float().mean(), "val_mse": F.mse_loss(when, weeks)}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        what, how_long = terms(*draw())
        return what + how_long, {"part_loss": float(what), "weeks_loss": float(how_long), **validate(step)}

    score = held_out(net, lambda: sum(terms(tx, part, weeks)))
    return fit(folder, net, optimizer, loss_of, 350, score=score)


@healthy(0.4)
def shelf_stock_for_nine_weeks_in_ten(folder):
    seeded(14923)
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    way = torch.randn(6, 2) / 6**0.5

    def weeks(rows):
        """What is sold spreads the more, the further the second of two seasons is."""
        x = torch.randn(rows, 6)
        seen = x @ way
        return x, (2 * seen[:, :1] + seen[:, :1].sin() + (0.2 + 0.3 * seen[:, 1:].abs()) * torch.randn(rows, 1)) / 2

    (x, y), (tx, ty) = weeks(5000), weeks(1000)
    draw = rounds(128, x, y)
    net = nn.Sequential(nn.Linear(6, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 117, 0.4)

    def pinball(week, sold):
        over = sold - net(week)
        return torch.maximum(quantiles * over, (quantiles - 1) * over).mean()

    def measure():
        return {"val_loss": pinball(tx, ty), "val_below_p90": (ty < net(tx)[:, 2:]).float().mean()}

    validate = now_and_then(net, 39, measure)

    def loss_of(step):
        return pinball(*draw()), validate(step)

    score = held_out(net, lambda: pinball(tx, ty))
    return fit(folder, net, optimizer, loss_of, 351, schedule=schedule, score=score)


@healthy(0.4)
def swatches_sorted_by_which_weave_they_resemble(folder):
    seeded(14924)
    weaves, mix = torch.randn(30, 6), torch.randn(6, 36) / 6**0.5

    def swatches(weave):
        """What a camera sees of a weave: its hidden traits, bent, and each swatch a little different."""
        traits = weaves[weave] + 0.35 * torch.randn(len(weave), 6)
        return (1.5 * traits @ mix).sin() + 0.1 * torch.randn(len(weave), 36)

    def triplets(rows):
        weave = torch.randint(30, (rows,))
        other = (weave + torch.randint(1, 30, (rows,))) % 30
        return swatches(weave), swatches(weave), swatches(other)

    net = dense(36, 96, 96, 16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    query, shelf = torch.arange(30).repeat(10), torch.arange(30).repeat(4)
    queries, shelves = swatches(query), swatches(shelf)

    def apart(rows):
        return F.normalize(net(rows), dim=1)

    def misplaced():
        """How many swatches lie nearest to one of another weave."""
        nearest = torch.cdist(apart(queries), apart(shelves)).argmin(1)
        return (shelf[nearest] != query).float().mean()

    validate = now_and_then(net, 60, lambda: {"val_recall_at_1": 1 - misplaced()})

    def loss_of(step):
        anchor, same, other = (apart(rows) for rows in triplets(96))
        return F.triplet_margin_loss(anchor, same, other, margin=0.5), validate(step)

    return fit(folder, net, optimizer, loss_of, 360, score=held_out(net, misplaced))


@healthy(0.7)
def three_makers_of_tonic_wine_by_their_assay(folder):
    seeded(14925)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]
    x = (x - x[:128].mean(0)) / x[:128].std(0)
    tx, ty = x[128:], y[128:]
    draw = rounds(16, x[:128], y[:128])
    net = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    validate = now_and_then(net, 16, judged(net, tx, ty))

    def loss_of(step):
        assay, maker = draw()
        said = net(assay)
        right = (said.argmax(1) == maker).float().mean()
        return F.cross_entropy(said, maker), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 160, score=score)


class Marker(nn.Module):
    """A tag for each word, read forwards and backwards; sentences are packed by their lengths."""

    def __init__(self, words, tags, width):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.memory = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, text, lengths):
        packed = pack_padded_sequence(self.words(text), lengths, batch_first=True, enforce_sorted=False)
        read = pad_packed_sequence(self.memory(packed)[0], batch_first=True, total_length=text.shape[1])[0]
        return self.head(read)


@healthy(0.6)
def names_and_places_marked_in_a_byline(folder):
    seeded(14926)

    def bylines(rows, most=12):
        """A word from 1 to 49; what it is hangs on its kind and on whether a title stands before or a comma behind."""
        lengths = torch.randint(6, most + 1, (rows,))
        text = torch.randint(1, 50, (rows, most))
        inside = torch.arange(most) < lengths[:, None]
        text = torch.where(inside, text, torch.zeros_like(text))
        before, behind = F.pad(text, (1, 0))[:, :-1], F.pad(text, (0, 1))[:, 1:]
        title, comma = (before > 0) & (before <= 12), behind >= 38
        tag = torch.where(title, 1, torch.where(comma, 2, torch.where(text > 24, 3, 0)))
        return text, lengths, torch.where(inside, tag, torch.full_like(tag, -100))

    train, (text, lengths, tag) = bylines(3000), bylines(400)
    draw, net = rounds(32, *train), Marker(50, 4, 24)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def entropy(text, lengths, tag):
        return F.cross_entropy(net(text, lengths).flatten(0, 1), tag.flatten(), ignore_index=-100)

    def measure():
        known = tag >= 0
        right = (net(text, lengths).argmax(2) == tag)[known].float().mean()
        return {"val_loss": entropy(text, lengths, tag), "val_accuracy": right}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        return entropy(*draw()), validate(step)

    score = held_out(net, lambda: entropy(text, lengths, tag))
    return fit(folder, net, optimizer, loss_of, 200, before_step=clipped(net, 1.0), score=score)


@healthy(0.2)
def spray_around_the_rock_drawn_by_a_flow(folder):
    seeded(14927)

    def spray(rows):
        """Drops on two arms of a spiral."""
        turn, arm = 4 * torch.rand(rows).sqrt(), torch.randint(2, (rows,)) * 3.1416
        drop = torch.stack([(turn + arm).cos(), (turn + arm).sin()], 1) * turn[:, None] / 2
        return drop + 0.05 * torch.randn(rows, 2)

    net = dense(3, 96, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 500, 1e-4)

    def gap(rows):
        """How far the speed that the net gives is from that of a straight line from noise to a drop."""
        drop, noise, time = spray(rows), torch.randn(rows, 2), torch.rand(rows, 1)
        return F.mse_loss(net(torch.cat([noise + time * (drop - noise), time], 1)), drop - noise)

    return fit(
        folder, net, optimizer, lambda step: gap(128), 500, schedule=schedule, score=held_out(net, lambda: gap(4000))
    )


@healthy(0.5)
def visits_to_the_counter_in_each_hour(folder):
    seeded(14928)

    def hours(rows):
        """Hour of the day, day of the week, how cold it is; how many come."""
        hour, day, cold = torch.randint(8, 20, (rows,)), torch.randint(7, (rows,)), torch.randn(rows)
        busy = 1.2 + 0.8 * ((hour - 8) / 12 * 6.2832).sin() + 0.3 * (day < 5) + 0.4 * cold - 0.15 * cold.square()
        return F.one_hot(hour - 8, 12), F.one_hot(day, 7), cold, torch.poisson(busy.exp())

    def table(rows):
        hour, day, cold, visits = hours(rows)
        return torch.cat([hour.float(), day.float(), cold[:, None]], 1), visits

    (x, y), (tx, ty) = table(6000), table(1500)
    draw = rounds(128, x, y)
    net = dense(20, 48, 48, 1)
    with torch.no_grad():
        net[-1].bias.fill_(y.mean().log())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def deviance(hour, visits):
        rate = net(hour)[:, 0]
        return 2 * (torch.xlogy(visits, visits) - visits * rate - visits + rate.exp()).mean()

    def loss_of(step):
        hour, visits = draw()
        loss = F.poisson_nll_loss(net(hour)[:, 0], visits, full=True)
        return loss, {"mean_rate": float(net(hour).detach().exp().mean())} if step % 50 == 0 else {}

    return fit(folder, net, optimizer, loss_of, 368, score=held_out(net, lambda: deviance(tx, ty)))


@healthy(0.6)
def small_loom_inspector_taught_by_a_large_one(folder):
    seeded(14929)
    way = torch.randn(20, 6) / 20**0.5

    def looms(rows):
        x = torch.randn(rows, 20)
        seen = x @ way
        return x, (seen[:, :3] * seen[:, 3:] * 2 + seen[:, :3]).argmax(1)

    (x, y), (tx, ty) = looms(6000), looms(1000)
    draw = rounds(128, x, y)
    teacher, student = dense(20, 192, 192, 3), dense(20, 40, 40, 3)
    taught = torch.optim.AdamW(teacher.parameters(), 2e-3, weight_decay=0.05)
    for _ in range(250):
        loom, state = draw()
        taught.zero_grad()
        F.cross_entropy(teacher(loom), state).backward()
        taught.step()
    teacher.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), 4e-3, weight_decay=0.01)
    validate = now_and_then(student, 46, judged(student, tx, ty))

    def loss_of(step):
        loom, state = draw()
        said, advice = student(loom), teacher(loom)
        soft = F.kl_div((said / 2).log_softmax(1), (advice / 2).softmax(1), reduction="batchmean") * 4
        hard = F.cross_entropy(said, state)
        return 0.7 * soft + 0.3 * hard, {"soft": float(soft), "hard": float(hard), **validate(step)}

    score = held_out(student, lambda: F.cross_entropy(student(tx), ty))
    return fit(folder, student, optimizer, loss_of, 368, score=score)


class Crossings(nn.Module):
    """Two rounds of messages along directed links, each added to what a node knew."""

    def __init__(self, links, size, width):
        super().__init__()
        self.register_buffer("below", links / links.sum(1, keepdim=True).clamp_min(1))
        self.register_buffer("above", links.T / links.T.sum(1, keepdim=True).clamp_min(1))
        self.enter = nn.Linear(size, width)
        self.rounds = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(2))
        self.leave = nn.Linear(width, 1)

    def forward(self, nodes):
        h = F.relu(self.enter(nodes))
        for step in self.rounds:
            h = h + F.relu(step(torch.cat([h, self.below @ h, self.above @ h], -1)))
        return self.leave(h)[..., 0]


@healthy(0.6)
def crowds_at_each_crossing_of_the_pistes(folder):
    seeded(14930)
    links = torch.triu((torch.rand(25, 25) < 0.2).float(), 1)
    from_above = links.T / links.T.sum(1, keepdim=True).clamp_min(1)

    def mornings(rows):
        """Who sets out at each crossing, and how steep it is there; who comes from above adds up."""
        nodes = torch.randn(rows, 25, 3)
        start = nodes[..., 0] + 0.5 * nodes[..., 1] * nodes[..., 2]
        once = start @ from_above.T
        crowd = start + 1.5 * once + once @ from_above.T + 0.1 * torch.randn(rows, 25)
        return nodes, crowd / 1.5

    (x, y), (tx, ty) = mornings(2000), mornings(300)
    draw, net = rounds(32, x, y), Crossings(links, 3, 32)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    validate = now_and_then(net, 62, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        nodes, crowd = draw()
        return F.mse_loss(net(nodes), crowd), validate(step)

    return fit(folder, net, optimizer, loss_of, 310, score=held_out(net, lambda: F.mse_loss(net(tx), ty)))


@healthy(0.4)
def words_that_keep_company_in_a_printers_archive(folder):
    seeded(14931)
    theme = torch.arange(200) % 8

    def pages(rows):
        """Two words of a page; four pages in five keep to one theme."""
        word, away = torch.randint(200, (rows,)), torch.randint(200, (rows,))
        near = torch.randint(25, (rows,)) * 8 + theme[word]
        return word, torch.where(torch.rand(rows) < 0.8, near, away)

    (word, context), (other, other_context) = pages(40000), pages(4000)
    strangers = torch.randint(200, (4000, 5))
    draw = rounds(256, word, context)
    net = nn.ModuleDict({"word": nn.Embedding(200, 24), "context": nn.Embedding(200, 24)})
    nn.init.uniform_(net["word"].weight, -0.5 / 24**0.5, 0.5 / 24**0.5)
    nn.init.uniform_(net["context"].weight, -0.5 / 24**0.5, 0.5 / 24**0.5)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def surprise(word, context, strangers):
        """Of the true neighbour, and of five strangers (skip-gram with negative sampling)."""
        seen = net["word"](word)
        true = (seen * net["context"](context)).sum(1)
        false = (net["context"](strangers) @ seen[:, :, None])[:, :, 0]
        return -F.logsigmoid(true).mean() - F.logsigmoid(-false).sum(1).mean()

    def one(step):
        word, context = draw()
        loss = surprise(word, context, torch.randint(200, (256, 5)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    score = held_out(net, lambda: surprise(other, other_context, strangers))
    return tend(folder, net, optimizer, one, 400, score)
