"""Networks of an unusual make in which nothing is wrong: experts, slits, memories, cells, one that trains others."""

import math

import torch
from nets import ALPHABET, pieces, predict
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, score_of, seeded
from unseen.tasks import clipped, tend


class Valleys(nn.Module):
    """A residual layer of eight experts, of which two are asked for each row."""

    def __init__(self, width=48, experts=8):
        super().__init__()
        self.into, self.norm, self.router = nn.Linear(10, width), nn.LayerNorm(width), nn.Linear(width, experts)
        self.experts = nn.ModuleList(dense(width, 2 * width, width, act=nn.GELU) for _ in range(experts))
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1))
        nn.init.normal_(self.router.weight, std=0.02)

    def forward(self, x):
        h = self.into(x)
        seen = self.norm(h)
        logits = self.router(seen)
        share, chosen = logits.softmax(1).topk(2)
        share = share / share.sum(1, keepdim=True)
        mixed = torch.zeros_like(h)
        for i, expert in enumerate(self.experts):
            row, slot = (chosen == i).nonzero(as_tuple=True)
            mixed = mixed.index_add(0, row, share[row, slot, None] * expert(seen[row]))
        load = F.one_hot(chosen, len(self.experts)).float().sum(1).mean(0) / 2
        balance = len(self.experts) * (load * logits.softmax(1).mean(0)).sum()
        return self.out(h + mixed), balance, logits.logsumexp(1).square().mean(), load


@healthy()
def frost_dates_of_six_valleys(folder):
    """Two of eight experts per row, with a loss for equal loads and one for small logits of the router."""
    seeded(3455)
    centres, slopes, bends = torch.randn(6, 10) * 1.5, torch.randn(6, 10) * 0.3, torch.randn(6, 10) * 0.6
    net = Valleys()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=500, pct_start=0.1)

    def farms(rows=192):
        valley = torch.randint(6, (rows,))
        off = torch.randn(rows, 10)
        date = (off * slopes[valley]).sum(1) + (off * bends[valley]).sum(1).sin() + 0.1 * torch.randn(rows)
        return centres[valley] + off, date[:, None]

    def loss_of(step):
        x, y = farms()
        found, balance, logits, load = net(x)
        error = F.mse_loss(found, y)
        loss = error + 0.01 * balance + 0.001 * logits
        return loss, {"error": error, "balance": balance, "router_z": logits, "largest_load": load.max()}

    def error(step):
        x, y = farms()
        return F.mse_loss(net(x)[0], y)

    return fit(folder, net, optimizer, loss_of, 500, score=score_of(error), schedule=schedule)


class Slit(nn.Module):
    """Attention to the six letters before and to the first one, nothing between."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm, self.second = heads, nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (nn.Linear(*size, bias=False) for size in
                                         ((width, 2 * width), (width, 2 * width), (2 * width, width)))  # fmt: skip

    def forward(self, x):
        n = x.shape[1]
        back = torch.arange(n)[:, None] - torch.arange(n)
        open_ = (back >= 0) & ((back < 6) | (torch.arange(n) == 0))
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=open_).transpose(1, 2).flatten(2))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


@healthy()
def a_proverb_read_through_a_slit(folder):
    """A language model of sparse attention; decay on matrices alone, a warm-up and a linear way down."""
    seeded(3456)
    table, head = nn.Embedding(len(ALPHABET), 48), nn.Linear(48, len(ALPHABET), bias=False)
    nn.init.normal_(table.weight, std=0.1)
    net = nn.Sequential(table, Slit(48), Slit(48), nn.RMSNorm(48), head)
    flat = [p for p in net.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": [p for p in net.parameters() if p.ndim > 1], "weight_decay": 0.1},
                                   {"params": flat, "weight_decay": 0.0}], 3e-3, betas=(0.9, 0.95))  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 30, 1.05 - step / 300))
    return fit(folder, net, optimizer, predict(net, pieces(24, seed=3456)), 300, schedule=schedule,
               before_step=clipped(net, 1.0), score=score_of(predict(net, pieces(24, seed=13456))))  # fmt: skip


class Diary(nn.Module):
    """Asks a list of entries twice: what it read first changes what it asks next."""

    def __init__(self, people=8, rooms=8, width=32):
        super().__init__()
        self.person, self.asked = nn.Embedding(people, width), nn.Embedding(people, width)
        self.room, self.age = nn.Embedding(rooms, width), nn.Embedding(10, width)
        self.turn, self.out = nn.Linear(width, width), nn.Linear(width, rooms)
        for table in (self.person, self.asked, self.room, self.age):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, people, rooms, question):
        keys = self.person(people) + self.age.weight
        values, state = self.room(rooms), self.asked(question)
        for _ in range(2):
            heed = torch.einsum("bnd,bd->bn", keys, state).softmax(1)
            state = self.turn(state) + torch.einsum("bn,bnd->bd", heed, values)
        return self.out(state)


@healthy()
def who_was_last_seen_in_the_pantry(folder):
    """A memory network: of ten entries the latest about somebody counts."""
    seeded(3457)
    net = Diary()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.5)

    def entries(rows):
        people, rooms = torch.randint(8, (rows, 10)), torch.randint(8, (rows, 10))
        question = people.gather(1, torch.randint(10, (rows, 1)))
        latest = ((people == question) * torch.arange(1, 11)).argmax(1, keepdim=True)
        return people, rooms, question[:, 0], rooms.gather(1, latest)[:, 0]

    def loss_of(step):
        *seen, room = entries(128)
        said = net(*seen)
        return F.cross_entropy(said, room), {"accuracy": (said.argmax(1) == room).float().mean()}

    def wrong():
        *seen, room = entries(2000)
        with torch.no_grad():
            return float((net(*seen).argmax(1) != room).float().mean())

    return fit(folder, net, optimizer, loss_of, 800, score=wrong, schedule=schedule, before_step=clipped(net, 40.0))


class Lattice(nn.Module):
    """Cells of eight numbers that see their neighbours and change now and then."""

    def __init__(self, kinds=8):
        super().__init__()
        across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        dot = torch.zeros(3, 3)
        dot[1, 1] = 1
        self.register_buffer("eyes", torch.stack([dot, across, across.T]).repeat(kinds, 1, 1)[:, None])
        self.rule = nn.Sequential(nn.Conv2d(3 * kinds, 48, 1), nn.ReLU(), nn.Conv2d(48, kinds, 1))
        nn.init.zeros_(self.rule[2].weight)
        nn.init.zeros_(self.rule[2].bias)

    def forward(self, x, times):
        for _ in range(times):
            moved = self.rule(F.conv2d(x, self.eyes, padding=1, groups=x.shape[1]))
            x = x + moved * (torch.rand_like(x[:, :1]) < 0.5)
        return x


@healthy()
def a_snowflake_that_heals(folder):
    """A cellular automaton with a pool of states; each gradient is brought to length one, as its inventors do."""
    seeded(3458)
    line = torch.linspace(-1, 1, 12)
    y, x = torch.meshgrid(line, line, indexing="ij")
    flake = ((0.55 + 0.35 * (6 * torch.atan2(y, x)).cos() - (x.square() + y.square()).sqrt()) * 6).sigmoid()
    seed = torch.zeros(8, 12, 12)
    seed[:, 6, 6] = 1
    net, pool = Lattice(), seed.repeat(48, 1, 1, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200], 0.3)

    def one(step):
        at = torch.randperm(48)[:8]
        begin = pool[at]
        begin[0] = seed
        if step > 100:
            begin[1, :, :, int(torch.randint(4, 9, ())) :] = 0
        grown = net(begin, int(torch.randint(14, 20, ())))
        off = F.mse_loss(grown[:, 0], flake.expand(8, -1, -1))
        loss = off + 0.01 * (grown.abs() - 2).relu().mean()
        optimizer.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.grad /= p.grad.norm() + 1e-8
        optimizer.step()
        schedule.step()
        pool[at] = grown.detach()
        return {"loss": loss, "picture": off}

    def score():
        with torch.no_grad():
            return F.mse_loss(net(seed.expand(8, -1, -1, -1), 18)[:, 0], flake.expand(8, -1, -1))

    return tend(folder, net, optimizer, one, 280, score)


class Guide(nn.Module):
    """An optimizer for each coordinate: from its gradient to its step, with a memory."""

    def __init__(self, hidden=20):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(2, hidden), nn.Linear(hidden, 1)

    def forward(self, slope, state):
        size = slope.abs().clamp(min=math.exp(-10)).log() / 10
        seen = torch.stack([size, torch.where(size > -1, slope.sign(), slope * math.exp(10))], 1)
        state = self.cell(seen, state)
        return 0.1 * self.out(state[0])[:, 0], state


@healthy()
def a_guide_down_any_hillside(folder):
    """A learned optimizer, trained through twenty steps on hills that are drawn anew."""
    seeded(3459)
    net = Guide()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200, 1e-4)

    def heights(rows=24, size=8):
        """Of the places on the way, the mean over all hills."""
        shape, low = torch.randn(rows, size, size) / math.sqrt(size), torch.randn(rows, size)
        place, state, all_heights = torch.randn(rows, size), None, []
        for _ in range(20):
            gap = torch.einsum("bij,bj->bi", shape, place) - low
            all_heights.append(gap.square().sum(1).mean())
            slope = 2 * torch.einsum("bij,bi->bj", shape, gap).detach().flatten()
            move, state = net(slope, state)
            place = place + move.view_as(place)
        return torch.stack(all_heights)

    def loss_of(step):
        way = heights()
        return way.mean(), {"height_at_the_end": way[-1]}

    return fit(folder, net, optimizer, loss_of, 200, schedule=schedule, before_step=clipped(net, 1.0),
               score=score_of(lambda step: heights()[-1]))  # fmt: skip
