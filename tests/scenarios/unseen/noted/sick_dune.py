"""Six trainings of a collector, a musician, a bargeman and their neighbours."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import tend

# ------------------------------------------------------------------------------------------------------------- spoons


# https://github.com/adambielski/siamese-triplet/issues/18
@sick(
    "nonfinite",
    where="all layers, from the step on in which a pair of two equal scans is drawn",
    cure="a small number under the square root of the distance: its derivative at zero is infinite",
)
def hallmarks_on_silver_spoons(folder, ill):
    seeded(3291)
    makers, each = 10, 60
    stamps = torch.randn(makers, 24)

    def scans(n):
        y = torch.arange(makers).repeat_interleave(n)
        return stamps[y] + 0.9 * torch.randn(len(y), 24)

    x, fresh = scans(each), scans(20)
    for maker in range(makers):
        x[maker * each + 1] = x[maker * each]
    net = dense(24, 64, 64, 8)

    def distance(a, b, least):
        return ((a - b).square().sum(1) + least).sqrt()

    def contrast(rows, n, pairs, least):
        maker, other = torch.randint(makers, (2, pairs))
        same = torch.rand(pairs) < 0.5
        other = torch.where(same, maker, (maker + 1 + other % (makers - 1)) % makers)
        first = torch.randint(n, (pairs,))
        second = (first + torch.randint(1, n, (pairs,))) % n
        d = distance(net(rows[maker * n + first]), net(rows[other * n + second]), least)
        return torch.where(same, d.square(), F.relu(2 - d).square()).mean()

    def score():
        with torch.no_grad():
            return contrast(fresh, 20, 2000, 1e-9)

    least = 0.0 if ill else 1e-9
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    return fit(folder, net, optimizer, lambda step: contrast(x, each, 64, least), 600, score=score)


# ------------------------------------------------------------------------------------------------------------- sounds


# https://github.com/magenta/ddsp/issues/191
@sick(
    "log-without-floor",
    "noise-dominated",
    where="the term of the logarithms: frames that nobody hears count more than the strokes",
    cure="log(x + 1e-5), so that differences far below what is heard count nothing",
)
def woodblock_in_a_quiet_room(folder, ill):
    seeded(3292)
    time, window = torch.arange(256) / 256, torch.hann_window(32)

    def strokes(n=32):
        asked = torch.rand(n, 3)
        begin = 0.1 + 0.5 * asked[:, :1]
        since = (time - begin).clamp(min=0)
        sounds = (time >= begin) * (-since * (25 + 25 * asked[:, 1:2])).exp()
        wave = sounds * (6.2832 * (20 + 40 * asked[:, 2:]) * since).sin()
        return asked, wave + 1e-7 * torch.randn(n, 256)

    def spectrum(wave):
        return torch.stft(wave, 32, 16, window=window, center=False, return_complex=True).abs()

    def log(x, floor):
        return torch.where(x <= 0, 1e-5, x).log() if floor is None else (x + floor).log()

    net = dense(3, 128, 128, 256, act=nn.SiLU)

    def losses(floor):
        asked, wave = strokes()
        made, true = spectrum(net(asked * 2 - 1)), spectrum(wave)
        return (made - true).abs().mean(), (log(made, floor) - log(true, floor)).abs().mean()

    def loss_of(step):
        plain, logs = losses(None if ill else 1e-5)
        return plain + logs, {"magnitudes": plain, "logarithms": logs}

    def score():
        with torch.no_grad():
            return float(sum(losses(1e-5)[0] for _ in range(20)) / 20)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score)


# ------------------------------------------------------------------------------------------------------------- a barge


# https://github.com/mrkulk/deepQN_tensorflow/issues/1
@sick(
    "values-overestimated",
    where="the values, all layers: what is asked for moves with every step",
    cure="a second copy of the net for the values of the next state, renewed every hundred steps",
)
def barge_between_sandbanks(folder, ill):
    seeded(3293)
    moves = torch.tensor([[0.0, 0.0], [0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])
    quay = torch.tensor([0.7, 0.7])

    def sail(place, act):
        after = (place + moves[act] + 0.02 * torch.randn_like(place)).clamp(-1, 1)
        aground = (after.norm(dim=1) - 0.4).abs() < 0.1
        there = (after - quay).norm(dim=1) < 0.2
        return after, there.float() - 0.3 * aground.float(), there

    place, act = torch.rand(5000, 2) * 2 - 1, torch.randint(5, (5000,))
    after, reward, there = sail(place, act)
    net, copy = dense(2, 64, 64, 5), dense(2, 64, 64, 5)
    copy.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def one(step):
        at = torch.randint(5000, (32,))
        if step % 100 == 0:
            copy.load_state_dict(net.state_dict())
        with torch.no_grad():
            ahead = (net if ill else copy)(after[at]).max(1).values
        wanted = reward[at] + 0.98 * ahead * ~there[at]
        value = net(place[at])[torch.arange(32), act[at]]
        loss = F.mse_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "value": value.mean()}

    def score():
        here, paid, under_way = torch.rand(300, 2) * 2 - 1, 0.0, torch.ones(300)
        with torch.no_grad():
            for _ in range(40):
                here, gain, done = sail(here, net(here).argmax(1))
                paid = paid + gain * under_way
                under_way = under_way * ~done
        return -float(paid.mean())

    return tend(folder, net, optimizer, one, 1200, score)


# -------------------------------------------------------------------------------------------------------------- corks


# https://github.com/omoindrot/tensorflow-triplet-loss/issues/51
@sick(
    "shapes-broadcast",
    where="the mask of the triplets: labels of one column give it a fourth axis",
    cure="labels of shape [rows], as the loss expects them: y.squeeze(1)",
)
def brands_on_wine_corks(folder, ill):
    seeded(3294)
    brands = torch.randn(12, 20)
    net = dense(20, 64, 64, 6)

    def corks(n):
        y = torch.randint(12, (n, 1))
        return brands[y[:, 0]] + 0.8 * torch.randn(n, 20), y

    def all_triplets(e, y, margin=0.5):
        apart = (e[:, None] - e[None]).square().sum(2)
        triplet = apart[:, :, None] - apart[:, None, :] + margin
        same = y[None] == y[:, None]
        other = ~torch.eye(len(e), dtype=torch.bool)
        distinct = other[:, :, None] & other[:, None, :] & other[None]
        valid = same[:, :, None] & ~same[:, None, :] & distinct
        hard = F.relu(triplet * valid)
        return hard.sum() / ((hard > 1e-16).sum() + 1e-16), (hard > 1e-16).sum() / valid.sum()

    def loss_of(step):
        x, y = corks(32)
        loss, share = all_triplets(F.normalize(net(x), dim=1), y if ill else y.squeeze(1))
        return loss, {"fraction_positive": share}

    def score():
        with torch.no_grad():
            (x, y), (known, its) = corks(400), corks(400)
            a, b = F.normalize(net(x), dim=1), F.normalize(net(known), dim=1)
            return float((its[(a @ b.T).argmax(1)] != y).float().mean())

    return fit(folder, net, torch.optim.Adam(net.parameters(), 1e-3), loss_of, 300, score=score)


# ------------------------------------------------------------------------------------------------------------ milkman


class Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, turn, sign):
        went = 1 / (1 + (sign * x).exp())
        ctx.save_for_backward(went, turn)
        return -torch.where(turn > 0.5, went, 1 - went).clamp(min=1e-5).log()

    @staticmethod
    def backward(ctx, grad):
        went, turn = ctx.saved_tensors
        return grad * (went - turn), None, None


# https://github.com/facebookresearch/fastText/issues/370
@sick(
    "wrong-sign",
    "gradient-of-another-function",
    where="the sigmoid at the branches of the tree, and so both layers",
    cure="the minus in the exponent: 1 / (1 + exp(-x))",
)
def notes_left_for_the_milkman(folder, ill):
    seeded(3295)
    words, wishes, depth = 200, 16, 4
    habit = (1.5 * torch.randn(wishes, words)).softmax(1)
    net = nn.ModuleDict({"words": nn.EmbeddingBag(words, 24), "tree": nn.Linear(24, wishes - 1, bias=False)})
    nn.init.uniform_(net["words"].weight, -1 / 24, 1 / 24)
    bit = torch.arange(depth)

    def notes(n):
        wish = torch.randint(wishes, (n,))
        return torch.multinomial(habit[wish], 10, replacement=True), wish

    def loss_of(step, n=64):
        text, wish = notes(n)
        node = (wish[:, None] + wishes) >> (depth - bit)
        turn = ((wish[:, None] + wishes) >> (depth - 1 - bit)) & 1
        branch = net["tree"](net["words"](text)).gather(1, node - 1)
        return Branches.apply(branch, turn.float(), 1 if ill else -1).sum(1).mean()

    def score():
        with torch.no_grad():
            return loss_of(0, 2000)

    return fit(folder, net, torch.optim.SGD(net.parameters(), 0.5, momentum=0.9), loss_of, 600, score=score)


# ------------------------------------------------------------------------------------------------------------- choirs


class Convolution(nn.Module):
    def __init__(self, size_in, size_out):
        super().__init__()
        self.linear = nn.Linear(size_in, size_out)

    def forward(self, x, ties):
        return ties @ self.linear(x)


class Ties(nn.Module):
    def __init__(self, size, kinds):
        super().__init__()
        self.first, self.second = Convolution(size, 32), Convolution(32, 32)
        self.third = Convolution(32, kinds)

    def forward(self, x, ties):
        x = F.relu(self.first(x, ties))
        return self.third(F.relu(self.second(x, ties)), ties)


# https://github.com/sufeidechabei/graphnets_gcn/issues/1
@sick(
    "aggregation-not-normalised",
    "exploding",
    where="all layers: values grow with the number of neighbours, and so again in each layer",
    cure="ties with loops, divided by the roots of the degrees at both ends",
)
def choirs_and_the_singers_they_share(folder, ill):
    seeded(3296)
    singers, choirs = 400, 5
    y = torch.randint(choirs, (singers,))
    known = torch.rand(singers, 1).pow(2) + 0.1
    chance = (known @ known.T) * torch.where(y[:, None] == y[None], 0.8, 0.12)
    tie = (torch.rand(singers, singers) < chance).triu(1).float()
    tie = tie + tie.T
    x = torch.randn(choirs, 16)[y] * 0.5 + torch.randn(singers, 16)
    if ill:
        ties = tie
    else:
        loops = tie + torch.eye(singers)
        root = loops.sum(1).rsqrt()
        ties = root[:, None] * loops * root[None]
    train, net = torch.rand(singers) < 0.25, Ties(16, choirs)

    def loss_of(step):
        out = net(x, ties)
        right = (out[train].argmax(1) == y[train]).float().mean()
        return F.cross_entropy(out[train], y[train]), {"accuracy": right}

    def score():
        with torch.no_grad():
            return F.cross_entropy(net(x, ties)[~train], y[~train])

    return fit(folder, net, torch.optim.Adam(net.parameters(), 0.01, weight_decay=5e-4), loss_of, 150, score=score)
