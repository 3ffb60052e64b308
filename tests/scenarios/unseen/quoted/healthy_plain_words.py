"""What is written and heard in longer runs: recipes, strokes, gaps, and the loads and levels of tomorrow."""

import math

import torch
from nets import ALPHABET, pieces
from torch import nn
from torch.nn import functional as F
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h):
        b, t, c = h.shape
        q, k, v = self.mix(self.norm1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return h + self.down(F.gelu(self.up(self.norm2(h))))


class Writer(nn.Module):
    """A GPT in small, the table of its tokens shared with its head."""

    def __init__(self, tokens, context, width=48, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                scale = 1 / math.sqrt(2 * depth) if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(weight, std=0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


@healthy()
def recipes_continued_by_a_small_gpt(folder):
    seeded(3521)
    words, context = 40, 24
    follows = (2.5 * torch.randn(words, words)).softmax(1)

    def draw(rows=24):
        line = [torch.randint(words, (rows,))]
        for _ in range(context):
            line.append(torch.multinomial(follows[line[-1]], 1)[:, 0])
        line = torch.stack(line, 1)
        return line[:, :-1], line[:, 1:]

    net = Writer(words, context)
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95))
    steps, warm = 300, 30

    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    def of(x, y):
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    fresh = draw(128)
    return fit(
        folder, net, optimizer, lambda step: of(*draw()), steps,
        score=held_out(net, lambda: of(*fresh)),
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, share), before_step=clipped(net, 1.0),
    )  # fmt: skip


@healthy()
def labels_of_crates_read_without_cuts(folder):
    seeded(3522)
    signs, rows_of = 6, 8
    shapes = torch.rand(signs, rows_of, 4).round()

    def draw(rows=16, most=5):
        lengths = torch.randint(2, most + 1, (rows,))
        y = torch.randint(1, signs + 1, (rows, most))
        image = torch.zeros(rows, rows_of, most * 6)
        for i in range(rows):
            at = int(torch.randint(0, 3, ()))
            for j in range(int(lengths[i])):
                image[i, :, at : at + 4] = shapes[y[i, j] - 1]
                at += 5 + int(torch.randint(0, 2, ())) * (j < 2)
        return image + 0.2 * torch.randn_like(image), y, lengths

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.look = nn.Sequential(nn.Conv1d(rows_of, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU())
            self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.head = nn.Linear(64, signs + 1)

        def forward(self, image):
            return self.head(self.rnn(self.look(image).transpose(1, 2))[0]).log_softmax(2)

    net = Reader()

    def of(image, y, lengths):
        out = net(image).transpose(0, 1)
        whole = torch.full((len(y),), out.shape[0])
        return F.ctc_loss(out, y, whole, lengths, zero_infinity=True)

    fresh = draw(96)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    score = held_out(net, lambda: of(*fresh))
    return fit(folder, net, optimizer, lambda step: of(*draw()), 350, score=score, before_step=clipped(net, 5.0))


@healthy()
def smudged_letters_of_a_signboard(folder):
    seeded(3523)
    width, length, gap = 32, 24, len(ALPHABET)
    piece = pieces(32, length, seed=3523)
    net = nn.ModuleDict({
        "embed": nn.Embedding(gap + 1, width),
        "place": nn.Embedding(length, width),
        "body": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True), 2,
            norm=nn.LayerNorm(width), enable_nested_tensor=False,
        ),
        "head": nn.Linear(width, gap),
    })  # fmt: skip

    def of(x):
        hidden = torch.rand(x.shape) < 0.15
        h = net["embed"](x.masked_fill(hidden, gap)) + net["place"](torch.arange(length))
        out = net["head"](net["body"](h))[hidden]
        return F.cross_entropy(out, x[hidden]), (out.argmax(1) == x[hidden]).float().mean()

    def loss_of(step):
        loss, right = of(piece(step)[0])
        return loss, {"masked_accuracy": right}

    steps = 750
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, (steps - step) / (steps - 50))
    )
    fresh = torch.cat([piece(steps + i)[0] for i in range(8)])
    score = held_out(net, lambda: of(fresh)[0])
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule)


def hourly(hours, noise=0.15):
    """A load with days, weeks and a slow drift, scaled."""
    t = torch.arange(hours).float()
    day, week = 2 * torch.pi * t / 24, 2 * torch.pi * t / 168
    load = day.sin() + 0.4 * (2 * day + 0.5).cos() + 0.5 * week.sin() * (1 + 0.5 * day.cos())
    drift = 0.02 * torch.randn(hours).cumsum(0)
    return (load + drift - drift.mean() + noise * torch.randn(hours)) / 1.2


def windows(series, seen, ahead):
    """`[N, seen]` and the `[N, ahead]` that follow."""
    both = series.unfold(0, seen + ahead, 1)
    return both[:, :seen], both[:, seen:]


@healthy()
def heat_drawn_from_a_district_network(folder):
    seeded(3524)
    series = hourly(3000)
    past, future = windows(series[:2500], 72, 6)
    test = windows(series[2500:], 72, 6)

    class Causal(nn.Module):
        def __init__(self, inputs, outputs, dilation):
            super().__init__()
            self.pad = 2 * dilation
            self.conv = nn.Conv1d(inputs, outputs, 3, dilation=dilation)
            self.short = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
            self.drop = nn.Dropout(0.05)

        def forward(self, x):
            return self.short(x) + self.drop(F.relu(self.conv(F.pad(x, (self.pad, 0)))))

    body = nn.Sequential(Causal(1, 24, 1), Causal(24, 24, 2), Causal(24, 24, 4), Causal(24, 24, 8), Causal(24, 24, 16))
    net = nn.ModuleDict({"body": body, "head": nn.Linear(24, 6)})

    def of(x, y):
        return F.l1_loss(net["head"](net["body"](x[:, None])[:, :, -1]), y)

    draw = rounds(64, past, future)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2)
    score = held_out(net, lambda: of(*test))

    def one(step):
        optimizer.zero_grad()
        loss = of(*draw())
        loss.backward()
        optimizer.step()
        logged = {"loss": loss}
        if step % 38 == 37:
            logged["validation_mae"] = score()
            plateau.step(logged["validation_mae"])
        return logged

    return tend(folder, net, optimizer, one, 38 * 9, score)


@healthy()
def cars_expected_in_a_garage(folder):
    seeded(3525)
    series = [hourly(700, 0.1) * (0.6 + torch.rand(())) for _ in range(6)]
    train = torch.cat([s[:550].unfold(0, 49, 3) for s in series])
    test = torch.cat([s[550:].unfold(0, 49, 7) for s in series])
    net = nn.ModuleDict({"rnn": nn.LSTM(1, 32, batch_first=True), "head": nn.Linear(32, 2)})

    def of(rows):
        mean, raw = net["head"](net["rnn"](rows[:, :-1, None])[0]).unbind(2)
        spread = F.softplus(raw) + 1e-3
        return F.gaussian_nll_loss(mean, rows[:, 1:], spread**2), spread.mean()

    draw = rounds(48, train)

    def loss_of(step):
        loss, spread = of(*draw())
        return loss, {"spread": spread}

    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    score = held_out(net, lambda: of(test)[0])
    return fit(folder, net, optimizer, loss_of, 420, score=score, before_step=clipped(net, 2.0))
