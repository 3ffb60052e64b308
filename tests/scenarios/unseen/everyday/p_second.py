"""Sick trainings of kitchens, bread and spices, drawn by lot from a list of mistakes: loops, data, parts left out."""

from __future__ import annotations

import copy

import torch
from sklearn.datasets import load_digits, make_classification
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


class Reader(nn.Module):
    """What comes after a series of readings."""

    def __init__(self, features, width):
        super().__init__()
        self.memory, self.head = nn.GRU(features, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, series):
        return self.head(self.memory(series)[0][:, -1])


@sick("gradients-accumulate", where="the loop, all steps", cure="zero_grad() before each backward()")
def foam_that_climbs_in_a_starter_jar(folder, ill):
    seeded(11606)
    net = Reader(1, 32)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)

    def jars(rows):
        speed, phase = 0.25 + 0.25 * torch.rand(rows, 1), 6.2832 * torch.rand(rows, 1)
        height = (speed * torch.arange(21.0) + phase).sin() + 0.05 * torch.randn(rows, 21)
        return height[:, :20, None], height[:, 20:]

    x, y = jars(2000)
    draw = rounds(50, x, y)
    tx, ty = jars(500)

    def one(step):
        x, y = draw()
        if not ill:
            optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return tend(folder, net, optimizer, one, 250, held_out(net, lambda: F.mse_loss(net(tx), ty)))


class Cellar(nn.Module):
    """The logarithms of the shares of six growers."""

    def __init__(self, axis):
        super().__init__()
        self.body, self.axis = dense(13, 32, 32, 6), axis

    def forward(self, x):
        return F.log_softmax(self.body(x), dim=self.axis)


@sick("softmax-over-the-batch", where="the model's last operation, all steps", cure="a softmax along dim=1")
def bottles_beside_a_cooks_stove(folder, ill):
    seeded(11607)
    table, growers = make_classification(
        1600, 13, n_informative=8, n_redundant=3, n_classes=6, n_clusters_per_class=1, class_sep=1.5,
        weights=[0.6, 0.15, 0.1, 0.07, 0.05, 0.03], flip_y=0.1, random_state=7,
    )  # fmt: skip
    x, y = torch.tensor(table, dtype=torch.float32), torch.tensor(growers)
    x = (x - x[:1200].mean(0)) / x[:1200].std(0)
    net = Cellar(0 if ill else 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    draw = rounds(8, x[:1200], y[:1200])

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.nll_loss(out, y), {"accuracy": float((out.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[1200:]), y[1200:]))
    return fit(folder, net, optimizer, loss_of, 250, score=score)


@sick("data-not-shuffled", where="the loader, all epochs", cure="shuffle=True")
def numbers_cut_into_gingerbread(folder, ill):
    seeded(11608)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits)
    order = torch.randperm(len(y))
    test, train = order[:400], order[400:]
    train = torch.cat([train[y[train] == digit] for digit in range(10)])
    loader = DataLoader(TensorDataset(x[train], y[train]), 32, shuffle=not ill)
    net = dense(64, 96, 48, 10)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def epochs():
        while True:
            yield from loader

    batches = epochs()

    def loss_of(step):
        x, y = next(batches)
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": float((logits.argmax(1) == y).float().mean())}

    score = held_out(net, lambda: F.cross_entropy(net(x[test]), y[test]))
    return fit(folder, net, optimizer, loss_of, 6 * len(loader), score=score)


class Block(nn.Module):
    """A block of a model of language."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.three, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = dense(width, 4 * width, width, act=nn.GELU)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = self.three(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(read.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.between(x))


class Recipe(nn.Module):
    """A model of the next word of a recipe."""

    def __init__(self, words, longest, width, causal):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*[Block(width, 4, causal) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, text):
        x = self.word(text) + self.place(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))


@sick("future-seen", where="the attention of both blocks, all steps", cure="a causal mask")
def steps_of_a_grandmothers_recipe(folder, ill):
    seeded(11609)
    words, length = 18, 14
    net = Recipe(words, length, 32, not ill)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.01)
    follows = torch.softmax(2.5 * torch.randn(words, words), 1)

    def recipes(rows):
        text = [torch.randint(words, (rows,))]
        for _ in range(length):
            text.append(torch.multinomial(follows[text[-1]], 1)[:, 0])
        return torch.stack(text, 1)

    text, test = recipes(2000), recipes(300)
    draw = rounds(32, text)

    def loss_of(step):
        (text,) = draw()
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def next_words():
        """One word at a time, as when a recipe is written."""
        return torch.stack([F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in range(1, length + 1)]).mean()

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, next_words))


@sick("target-network-stale", where="the target network, all steps", cure="a copy of the network every 20 steps")
def a_mouse_and_the_last_crumb(folder, ill):
    seeded(11610)
    cells, gamma, rows = 10, 0.9, 16
    net = dense(cells, 64, 2)
    target = copy.deepcopy(net)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    places = torch.eye(cells)
    place, memory = torch.zeros(rows, dtype=torch.long), []

    def act(step):
        nonlocal place
        with torch.no_grad():
            best = net(places[place]).argmax(1)
        epsilon = max(0.2, 1 - step / 200)
        way = torch.where(torch.rand(rows) < epsilon, torch.randint(2, (rows,)), best)
        after = (place + 2 * way - 1).clamp(0, cells - 1)
        found = after == cells - 1
        memory.append((place, way, after, found.float()))
        place = torch.where(found, torch.randint(cells - 1, (rows,)), after)
        return float(found.float().mean())

    for _ in range(60):
        act(0)

    def one(step):
        reward = act(step)
        drawn = [memory[i] for i in torch.randint(len(memory), (6,))]
        place, way, after, found = (torch.cat(each) for each in zip(*drawn, strict=False))
        with torch.no_grad():
            wanted = found + gamma * (1 - found) * target(places[after]).max(1).values
        value = net(places[place]).gather(1, way[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not ill and step % 20 == 19:
            target.load_state_dict(net.state_dict())
        return {"loss": loss, "reward": reward, "q": value.mean()}

    worth = gamma ** torch.arange(cells - 2, -1, -1.0)
    score = held_out(net, lambda: (net(places[:-1]).max(1).values - worth).abs().mean())
    return tend(folder, net, optimizer, one, 400, score)


class Pass(nn.Module):
    """Reads an order and says it again, the last dish first."""

    def __init__(self, dishes, width, cut):
        super().__init__()
        self.dish, self.cut = nn.Embedding(dishes + 1, 24), cut
        self.hear, self.say = nn.GRU(24, width, batch_first=True), nn.GRU(24, width, batch_first=True)
        self.head = nn.Linear(width, dishes)

    def forward(self, order, said):
        state = self.hear(self.dish(order))[1]
        if self.cut:
            state = state.detach()
        return self.head(self.say(self.dish(said), state)[0])


@sick("no-gradient", where="the reading GRU, all steps", cure="no detach() of the state that goes to the saying GRU")
def tickets_called_back_over_the_pass(folder, ill):
    seeded(11611)
    dishes = 8
    net = Pass(dishes, 40, ill)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def loss_on(order):
        answer = order.flip(1)
        begin = torch.full_like(order[:, :1], dishes)
        return F.cross_entropy(net(order, torch.cat([begin, answer[:, :-1]], 1)).flatten(0, 1), answer.flatten())

    def orders(rows):
        return torch.randint(dishes, (rows, 7))

    test = orders(400)
    score = held_out(net, lambda: loss_on(test))
    return fit(folder, net, optimizer, lambda step: loss_on(orders(48)), 320, score=score)
