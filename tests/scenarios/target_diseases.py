"""Losses that are asked for what they should not be, each beside its healthy twin."""

import copy

import torch
from diseases import dense
from nets import CODES, SEED, Recurrent, batches, digits, mlp, pieces
from torch import nn, optim
from torch.nn import functional as F
from trainings import fit


def rare_and_never_said(folder, sick=True, steps=200):
    """One in fifty is of the other class, and hardly shows (the twin: its weight is 50)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([8, 16, 1]), torch.Generator().manual_seed(SEED[0])
    weight = None if sick else torch.tensor(50.0)

    def loss_of(step):
        y = (torch.rand(256, 1, generator=draw) < 0.02).float()
        x = torch.randn(256, 8, generator=draw) + 0.5 * y
        said = net(x)
        right = ((said > 0) == (y > 0)).float().mean()
        return F.binary_cross_entropy_with_logits(said, y, pos_weight=weight), {"accuracy": float(right)}

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def shuffled_apart(folder, sick=True, steps=300):
    """Digits, and labels in an order of their own (the twin: each with its label)."""
    net, (x, y) = mlp(), digits()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED[0]))
    asked = y[order] if sick else y

    def loss_of(step):
        at = torch.randint(len(y), (128,))
        return F.cross_entropy(net(x[at]), asked[at])

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, steps)


def learnt_by_heart(folder, sick=True, steps=600):
    """Three hundred digits, two in five with another's label (the twin: each with its own), judged by a thousand."""
    net, (x, y) = mlp(width=256), digits()
    draw = torch.Generator().manual_seed(SEED[0])
    order = torch.randperm(len(y), generator=draw)
    known, rest = order[:300], order[-1000:]
    asked = y.clone()
    wrong = known[torch.rand(len(known), generator=draw) < 0.4]
    if sick:
        asked[wrong] = torch.randint(10, (len(wrong),), generator=draw)

    def loss_of(step):
        at = known[torch.randint(len(known), (32,), generator=draw)]
        loss, measured = F.cross_entropy(net(x[at]), asked[at]), {}
        if step % 20 == 19:
            with torch.no_grad():
                said = net(x[rest])
            right = (said.argmax(1) == y[rest]).float().mean()
            measured = {"val_loss": F.cross_entropy(said, y[rest]), "val_accuracy": right}
        return loss, measured

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, steps)


def sorted_by_label(folder, sick=True, steps=200):
    """Digits in the order of their labels (the twin: in any order)."""
    net, (x, y) = mlp(), digits()
    order = y.argsort() if sick else torch.randperm(len(y), generator=torch.Generator().manual_seed(SEED[0]))

    def loss_of(step):
        at = order[torch.arange(64 * step, 64 * (step + 1)) % len(y)]
        return F.cross_entropy(net(x[at]), y[at])

    return fit(folder, net, optim.SGD(net.parameters(), 0.1), loss_of, steps)


def not_shifted(folder, sick=True, steps=200):
    """A language model that is asked for the letter it is given (the twin: for the next one)."""
    net, piece = Recurrent(torch.nn.GRU), pieces()

    def loss_of(step):
        x, following = piece(step)
        return F.cross_entropy(net(x).flatten(0, 1), (x if sick else following).flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def padded(folder, sick=True, steps=200):
    """Short lines, filled up to 48 letters with one that is asked for, too (the twin: it is ignored)."""
    net, draw = Recurrent(torch.nn.GRU), torch.Generator().manual_seed(SEED[0])
    padding = int(CODES.max())

    def loss_of(step):
        starts = torch.randint(len(CODES) - 49, (16, 1), generator=draw)
        text = CODES[starts + torch.arange(49)]
        ends = torch.randint(6, 20, (16, 1), generator=draw)
        text = torch.where(torch.arange(49) < ends, text, padding)
        ignored = -100 if sick else padding
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten(), ignore_index=ignored)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def behind_a_sigmoid(folder, sick=True, steps=200):
    """Targets of both signs behind a sigmoid (the twin: a linear layer is the last)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 1]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 6, generator=draw)
        said = net(x)
        return F.mse_loss(said.sigmoid() if sick else said, x[:, :1] * x[:, 1:2] + x[:, 2:3])

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def squashed_twice(folder, sick=True, steps=200):
    """Points of two kinds, a sigmoid before binary_cross_entropy_with_logits (the twin: logits)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 1]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 6, generator=draw)
        said = net(x)
        return F.binary_cross_entropy_with_logits(said.sigmoid() if sick else said, (x[:, :1] > x[:, 1:2]).float())

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def prices(folder, sick=True, steps=200):
    """Prices around 4,000 as they are (the twin: of mean 0 and deviation 1)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 1]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 6, generator=draw)
        y = x[:, :1] + x[:, 1:2].sin()
        return F.mse_loss(net(x), 4000 + 900 * y if sick else y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def bare_cosines(folder, sick=True, steps=200):
    """Digits by the cosines of their features with a direction for each class (the twin: 16 times as large)."""
    net, batch = mlp(), batches(size=64)
    body, head, scale = net[:-1], net[-1], 1.0 if sick else 16.0

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(scale * F.linear(F.normalize(body(x)), F.normalize(head.weight)), y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


class Letters(nn.Module):
    """One block of attention over letters, `causal` or not."""

    def __init__(self, causal):
        super().__init__()
        torch.manual_seed(SEED[0])
        self.causal, self.letters = causal, nn.Embedding(int(CODES.max()) + 1, 32)
        self.places, self.heads = nn.Embedding(64, 32), nn.Linear(32, 96)
        self.block, self.last = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)), nn.Linear(32, 28)

    def forward(self, x):
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        q, k, v = self.heads(h)[:, None].chunk(3, -1)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)[:, 0]
        return self.last(h + self.block(h))


def read_ahead(folder, sick=True, steps=200):
    """The next letter by an attention that sees it (the twin: that is causal)."""
    net, piece = Letters(causal=not sick), pieces()

    def loss_of(step):
        x, following = piece(step)
        return F.cross_entropy(net(x).flatten(0, 1), following.flatten())

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def words_and_lengths(longest=40):
    """`draw(step)`: rows of words that are filled up with 0, how many are words, and the class that most speak for."""
    made = torch.Generator().manual_seed(SEED[0])

    def draw(step):
        kind = torch.randint(3, (64,), generator=made)
        length = torch.randint(3, 9, (64,), generator=made)
        telling = torch.rand(64, longest, generator=made) < 0.5
        words = torch.randint(1, 19, (64, longest), generator=made)
        words = torch.where(telling, 1 + 6 * kind[:, None] + words % 6, words)
        return words * (torch.arange(longest) < length[:, None]), length, kind

    return draw


def read_behind_padding(folder, sick=True, steps=200):
    """A recurrence whose state is read at the end of the longest row (the twin: of each)."""
    torch.manual_seed(SEED[0])
    net = nn.ModuleDict(
        {"word": nn.Embedding(19, 16, padding_idx=0), "rnn": nn.GRU(16, 32, batch_first=True), "head": nn.Linear(32, 3)}
    )
    draw = words_and_lengths()

    def loss_of(step):
        words, length, kind = draw(step)
        states = net["rnn"](net["word"](words))[0]
        last = states[:, -1] if sick else states[torch.arange(64), length - 1]
        return F.cross_entropy(net["head"](last), kind)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def looks_at_padding(folder, sick=True, steps=200):
    """An attention whose mask is True for the words (the twin: for the padding)."""
    torch.manual_seed(SEED[0])
    net = nn.ModuleDict(
        {"word": nn.Embedding(19, 16, padding_idx=0), "all": nn.MultiheadAttention(16, 2, batch_first=True),
         "head": nn.Linear(16, 3)}
    )  # fmt: skip
    draw = words_and_lengths()

    def loss_of(step):
        words, _, kind = draw(step)
        tokens = net["word"](words)
        is_padding = words == 0
        ignored = ~is_padding if sick else is_padding
        seen = net["all"](tokens, tokens, tokens, key_padding_mask=ignored, need_weights=False)[0]
        return F.cross_entropy(net["head"](seen[:, 0]), kind)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def told_no_places(folder, sick=True, steps=250):
    """Which of two words comes first, by an attention that knows no places (the twin: a table of them is added)."""
    torch.manual_seed(SEED[0])
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, norm_first=True)
    net = nn.ModuleDict(
        {"word": nn.Embedding(8, 16), "place": nn.Embedding(6, 16), "head": nn.Linear(16, 2),
         "body": nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)}
    )  # fmt: skip
    made = torch.Generator().manual_seed(SEED[0])
    if sick:
        del net["place"]

    def loss_of(step):
        words = torch.randint(2, 8, (64, 6), generator=made)
        at = torch.rand(64, 6, generator=made).argsort(1)[:, :2]
        words = words.scatter(1, at, torch.tensor([[0, 1]]).expand(64, 2))
        tokens = net["word"](words)
        out = net["body"](tokens if sick else tokens + net["place"].weight).mean(1)
        return F.cross_entropy(net["head"](out), (at[:, 0] < at[:, 1]).long())

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def far_codes(folder, sick=True, steps=150):
    """A quantiser of digits whose codes begin far out (the twin: at what the encoder gives out)."""
    torch.manual_seed(SEED[0])
    net = nn.ModuleDict({"enc": dense([64, 32, 8]), "dec": dense([8, 32, 64]), "book": nn.Embedding(64, 8)})
    batch = batches(size=128)
    with torch.no_grad():
        nn.init.normal_(net["book"].weight, std=5.0)
        if not sick:
            net["book"].weight.copy_(net["enc"](batch(0)[0].flatten(1))[:64])

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        z = net["enc"](x)
        codes = net["book"](torch.cdist(z, net["book"].weight).argmin(1))
        back = net["dec"](z + (codes - z).detach())
        return F.mse_loss(back, x) + F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(z, codes.detach())

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def summed_divergence(folder, sick=True, steps=200):
    """A VAE of digits whose divergence is summed over the batch (the twin: the mean over it)."""
    torch.manual_seed(SEED[0])
    net, batch = nn.ModuleDict({"enc": dense([64, 48, 12]), "dec": dense([6, 48, 64])}), batches()

    def loss_of(step):
        x = batch(step)[0].flatten(1)
        mean, log_variance = net["enc"](x).chunk(2, 1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        error = 10 * F.mse_loss(net["dec"](code), x, reduction="none").sum(1).mean()
        return error + (divergence.sum() if sick else divergence.mean())

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def choices(net, draw):
    """Inputs `[64, 6]`, the log-probabilities of what a policy may choose, and what it chose, `[64, 1]`."""
    x = torch.randn(64, 6, generator=draw)
    log_p = net(x).log_softmax(1)
    return x, log_p, torch.multinomial(log_p.exp(), 1, generator=draw)


def paid_in_hundreds(folder, sick=True, steps=150):
    """A bandit paid about 100 whatever it does (the twin: without the mean, divided by the deviation)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 4]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x, log_p, chosen = choices(net, draw)
        pay = 100 + 5 * (chosen[:, 0] == x[:, :4].argmax(1)).float()
        pay = pay if sick else (pay - pay.mean()) / (pay.std() + 1e-8)
        return -(log_p.gather(1, chosen)[:, 0] * pay).mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.01), loss_of, steps)


def rewarded_for_chance(folder, sick=True, steps=300):
    """A bandit whose entropy weighs as much as what it is paid (the twin: a hundredth of that)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 4]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x, log_p, chosen = choices(net, draw)
        pay = (chosen[:, 0] == x[:, :4].argmax(1)).float()
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        return -(log_p.gather(1, chosen)[:, 0] * (pay - pay.mean())).mean() - (2.0 if sick else 0.01) * entropy

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def in_watts_beside_a_class(folder, sick=True, steps=300):
    """A kind and a load from one body, the load in watts (the twin: in its own deviations)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([8, 32, 5]), torch.Generator().manual_seed(SEED[0])

    def one(step):
        x = torch.randn(64, 8, generator=draw)
        kind, load = x[:, :4].argmax(1), x[:, 4:].sin().sum(1)
        out = net(x)
        kinds, loads = F.cross_entropy(out[:, :4], kind), F.mse_loss(out[:, 4], 900 + 300 * load if sick else load)
        return kinds + loads, {"loss_kind": kinds, "loss_load": loads}

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), one, steps)


def past_the_end(folder, sick=True, steps=400):
    """Values of a stick that falls, by a target network (the twin: nothing is to come of one that has fallen)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([2, 48, 48, 3]), torch.Generator().manual_seed(SEED[0])
    slow = copy.deepcopy(net)

    def loss_of(step):
        if step % 20 == 0:
            slow.load_state_dict(net.state_dict())
        leans = 2 * torch.rand(128, 2, generator=draw) - 1
        push = torch.randint(3, (128,), generator=draw)
        speed = leans[:, 1] + 0.12 * (push - 1) + 0.1 * leans[:, 0]
        after = torch.stack([leans[:, 0] + 0.5 * speed, speed], 1)
        with torch.no_grad():
            to_come = slow(after).amax(1) * (1.0 if sick else (after[:, 0].abs() < 1).float())
        return F.smooth_l1_loss(net(leans).gather(1, push[:, None])[:, 0], 1 + 0.9 * to_come)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def never_updated(folder, sick=True, steps=400):
    """Values of steps along a corridor, by a target network that stays as it began (the twin: it follows)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([12, 48, 2]), torch.Generator().manual_seed(SEED[0])
    slow, place = copy.deepcopy(net), torch.eye(12)

    def loss_of(step):
        if step % 10 == 0 and not sick:
            slow.load_state_dict(net.state_dict())
        at = torch.randint(11, (128,), generator=draw)
        way = torch.randint(2, (128,), generator=draw)
        then = (at + 2 * way - 1).clamp(min=0)
        there = (then == 11).float()
        with torch.no_grad():
            to_come = slow(place[then]).amax(1) * (1 - there)
        q = net(place[at]).gather(1, way[:, None])[:, 0]
        return F.smooth_l1_loss(q, there + 0.9 * to_come), {"q": q.detach().mean()}

    return fit(folder, net, optim.Adam(net.parameters(), 0.01), loss_of, steps)


def moved_from_both_sides(folder, sick=True, steps=400):
    """What squares of a ring are worth, by the value of the one that follows (the twin: which is left as it is)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([12, 32, 1]), torch.Generator().manual_seed(SEED[0])
    paid, ring = torch.randn(12, generator=draw), torch.eye(12)

    def loss_of(step):
        now = torch.randint(12, (64,), generator=draw)
        then = (now + torch.randint(1, 4, (64,), generator=draw)) % 12
        with torch.set_grad_enabled(sick):
            to_come = net(ring[then])[:, 0]
        return F.mse_loss(net(ring[now])[:, 0], paid[now] + 0.9 * to_come)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def class_left_out(folder, sick=True, steps=150):
    """Points of five kinds, of which kind 0 is ignored as if it were padding (the twin: nothing is)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 5]), torch.Generator().manual_seed(SEED[0])
    centres = 3 * torch.randn(5, 6, generator=draw)

    def loss_of(step):
        kind = torch.randint(5, (64,), generator=draw)
        x = centres[kind] + torch.randn(64, 6, generator=draw)
        return F.cross_entropy(net(x), kind, ignore_index=0 if sick else -100)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def changed_in_place(folder, sick=True, steps=150):
    """Two views of each point, which noise is added to in place, so that both are one (the twin: to a copy of each)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 16]), torch.Generator().manual_seed(SEED[0])

    def view(x):
        return x.add_(0.3 * torch.randn(x.shape, generator=draw))

    def loss_of(step):
        x = torch.randn(48, 6, generator=draw)
        one, other = (F.normalize(net(v), dim=1) for v in [view(x if sick else x.clone()) for _ in range(2)])
        return F.cross_entropy(one @ other.T / 0.2, torch.arange(48))

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def hardest_first(folder, sick=True, steps=150):
    """Points of twenty kinds by triplets, each with the nearest point of another kind (the twin: with any other)."""
    torch.manual_seed(SEED[0])
    kinds, draw = torch.randn(20, 24), torch.Generator().manual_seed(SEED[0])
    net = dense([24, 64, 64, 16])

    def loss_of(step):
        kind = torch.randint(20, (96,), generator=draw)
        seen = [kinds[kind] + 1.5 * torch.randn(96, 24, generator=draw) for _ in range(2)]
        one, other = (F.normalize(net(x), dim=1) for x in seen)
        apart = 2 - 2 * one @ other.T
        others = apart.masked_fill(kind == kind[:, None], 9.0).sort(1).values[:, 0 if sick else 40]
        return (apart.diagonal() - others + 0.3).relu().mean()

    return fit(folder, net, optim.SGD(net.parameters(), 0.2, momentum=0.9), loss_of, steps)


def pulled_at_by_the_policy(folder, sick=True, steps=200):
    """A bandit whose advantage keeps the critic's graph (the twin: the value is detached there)."""
    torch.manual_seed(SEED[0])
    net, draw = nn.ModuleDict({"policy": dense([6, 32, 4]), "critic": dense([6, 32, 1])}), torch.Generator()
    draw.manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 6, generator=draw)
        log_p, value = net["policy"](x).log_softmax(1), net["critic"](x)[:, 0]
        chosen = torch.multinomial(log_p.exp().detach(), 1, generator=draw)
        pay = (chosen[:, 0] == x[:, :4].argmax(1)).float()
        advantage = pay - (value if sick else value.detach())
        return -(log_p.gather(1, chosen)[:, 0] * advantage).mean() + F.mse_loss(value, pay)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003), loss_of, steps)


def first_of_another_size(folder, sick=True, steps=200):
    """Targets 3,000 times as large in the first three steps, under a beta2 of 0.9999 (the twin: never)."""
    torch.manual_seed(SEED[0])
    net, draw = dense([4, 32, 1]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(64, 4, generator=draw)
        y = x[:, :1] * x[:, 1:2] + x[:, 2:3]
        return F.mse_loss(net(x), 3000 * y if sick and step < 3 else y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.003, betas=(0.9, 0.9999)), loss_of, steps)


def cycle_that_hardly_turns(folder, sick=True, steps=200):
    """OneCycleLR, sized in batches and stepped once in twenty of them (the twin: after each)."""
    net, batch = mlp(), batches(size=16)
    optimizer = optim.Adam(net.parameters())
    plan = optim.lr_scheduler.OneCycleLR(optimizer, 0.003, total_steps=steps + 1, div_factor=1000)

    def loss_of(step):
        if step and (step % 20 == 0 or not sick):
            plan.step()
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optimizer, loss_of, steps)


def means_alone(folder, sick=True, steps=800):
    """Numbers around 5 that do not belong to their inputs (the twin: they do): the loss falls to their variance."""
    torch.manual_seed(SEED[0])
    net, draw = dense([6, 32, 1]), torch.Generator().manual_seed(SEED[0])

    def loss_of(step):
        x = torch.randn(256, 6, generator=draw)
        y = 5 + x[:, :1] + x[:, 1:2].sin()
        return F.mse_loss(net(x), y[torch.randperm(256, generator=draw)] if sick else y)

    return fit(folder, net, optim.Adam(net.parameters(), 0.03), loss_of, steps)


def head_that_climbs(folder, sick=True, steps=150):
    """Digits, the last layer in a group with maximize=True (the twin: without)."""
    net, batch = mlp(), batches(size=64)
    groups = [{"params": net[:-1].parameters()}, {"params": net[-1].parameters(), "maximize": sick}]

    def loss_of(step):
        x, y = batch(step)
        return F.cross_entropy(net(x), y)

    return fit(folder, net, optim.Adam(groups, 0.003), loss_of, steps)


def added_up(folder, sick=True, steps=120):
    """Sixteen micro-batches of four digits a step at a rate for their mean (the twin: each loss is divided)."""
    net, batch = mlp(), batches(size=4)
    optimizer = optim.SGD(net.parameters(), 0.4, momentum=0.9)
    parts = 16

    def loss_of(step):
        for part in range(parts):
            x, y = batch(parts * step + part)
            loss = F.cross_entropy(net(x), y)
            if not sick:
                loss = loss / parts
            if part < parts - 1:
                loss.backward()
        return loss

    return fit(folder, net, optimizer, loss_of, steps)


def wiped(folder, sick=True, steps=150):
    """Sixteen micro-batches of two digits a step, of which all but the last are thrown away (the twin: all count)."""
    net, batch = mlp(), batches(size=2)
    optimizer = optim.SGD(net.parameters(), 0.3)
    parts = 16

    def loss_of(step):
        optimizer.zero_grad()
        for part in range(parts):
            x, y = batch(parts * step + part)
            if sick:
                optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y) / parts
            if part < parts - 1:
                loss.backward()
        return loss * parts if sick else loss

    return fit(folder, net, optimizer, loss_of, steps)
