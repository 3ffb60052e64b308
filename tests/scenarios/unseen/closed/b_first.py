"""Mistakes from closed issues: OpenNMT-py, DALLE-pytorch, pytorch/examples, rllib."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds


# OpenNMT/OpenNMT-py issues/2013: "coverage loss implementation might be wrong"
@sick(
    "loss-term-without-gradient",
    "loss-term-constant",
    where="the coverage term, in all steps",
    cure="compare the attention with the sum of the attentions before it, its own left out",
)
def telegrams_from_shorthand(folder, ill):
    seeded(9950)
    words, length, wide, strength = 16, 6, 32, 2.0

    class Clerk(nn.Module):
        def __init__(self):
            super().__init__()
            self.strokes, self.words = nn.Embedding(words, wide), nn.Embedding(words, wide)
            self.reader = nn.GRU(wide, wide // 2, batch_first=True, bidirectional=True)
            self.cell = nn.GRUCell(2 * wide, wide)
            self.ask, self.key = nn.Linear(wide, wide), nn.Linear(wide, wide)
            self.seen, self.energy = nn.Linear(1, wide), nn.Linear(wide, 1)
            self.out = nn.Linear(2 * wide, words)

        def forward(self, x, before, sum_of_all):
            keys, last = self.reader(self.strokes(x))
            state, covered = last.transpose(0, 1).flatten(1), torch.zeros(x.shape)
            logits, repeated, honest = [], 0, 0
            for t in range(length):
                mixed = self.key(keys) + self.ask(state)[:, None] + self.seen(covered[..., None])
                attention = self.energy(mixed.tanh())[..., 0].softmax(1)
                honest = honest + torch.minimum(attention, covered).sum(1).mean() / length
                sums = covered + attention
                repeated = repeated + torch.minimum(attention, sums if sum_of_all else covered).sum(1).mean() / length
                covered = sums
                context = (attention[..., None] * keys).sum(1)
                state = self.cell(torch.cat([self.words(before[:, t]), context], 1), state)
                logits.append(self.out(torch.cat([state, context], 1)))
            return torch.stack(logits, 1), repeated, honest

    table = torch.randperm(words)

    def draw(rows=32):
        x = torch.randint(words, (rows, length))
        y = table[x.sort(1).values]
        return x, y, F.pad(y[:, :-1], (1, 0))

    net, kept = Clerk(), draw(256)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def loss_of(step):
        x, y, before = draw()
        logits, repeated, _ = net(x, before, ill)
        words_loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return words_loss + strength * repeated, {"words_loss": words_loss, "coverage_loss": repeated}

    def score():
        x, y, before = kept
        logits, _, honest = net(x, before, False)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()) + strength * honest

    return fit(folder, net, optimizer, loss_of, 160, score=held_out(net, score))


# lucidrains/DALLE-pytorch issues/97: "Using 'conv_like' attention causes loss to nosedive too quickly"
@sick(
    "future-seen",
    where="the masks of both attentions, all steps",
    cure="let the window of a knot hold only knots that come before it",
)
def rugs_knot_by_knot(folder, ill):
    seeded(9951)
    side, colours, wide = 5, 5, 32
    place = torch.arange(side * side)
    row, column = place // side, place % side
    near = ((row[:, None] - row).abs() <= 1) & ((column[:, None] - column).abs() <= 1)
    mask = near if ill else near & (place[:, None] >= place)

    class Weaver(nn.Module):
        def __init__(self):
            super().__init__()
            self.colour, self.place = nn.Embedding(colours + 1, wide), nn.Embedding(side * side, wide)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(wide, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
                for _ in range(2)
            )
            self.out = nn.Linear(wide, colours)

        def forward(self, x):
            h = self.colour(x) + self.place.weight
            for block in self.blocks:
                h = block(h, src_mask=~mask)
            return self.out(h)

    def draw(rows=32):
        rug = torch.randint(colours, (rows, side, side))
        fresh = torch.rand(rows, side, side) < 0.15
        for i in range(1, side):
            for j in range(1, side):
                said = (rug[:, i - 1, j] + rug[:, i, j - 1]) % colours
                rug[:, i, j] = torch.where(fresh[:, i, j], rug[:, i, j], said)
        return rug.flatten(1)

    net, kept = Weaver(), draw(128)
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)

    def shifted(rug):
        return F.pad(rug[:, :-1] + 1, (1, 0))

    def loss_of(step):
        rug = draw()
        return F.cross_entropy(net(shifted(rug)).flatten(0, 1), rug.flatten())

    def woven():
        losses = []
        for at in range(side + 1, side * side, 3):
            known = shifted(kept) * (place <= at)
            losses.append(F.cross_entropy(net(known)[:, at], kept[:, at]))
        return torch.stack(losses).mean()

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, woven))


# pytorch/examples issues/737: "Imagenet Example: Training loss goes to 0 immediately"
@sick(
    "labels-all-one-class",
    "class-imbalance",
    where="the labels, all steps",
    cure="one folder for each kind, so that each kind has its label",
)
def tiles_by_their_kiln(folder, ill):
    seeded(9952)
    kilns = ["blue", "green", "ochre", "red", "white"]
    stamps = torch.randn(5, 3, 12, 12)

    def draw(rows):
        kind = torch.randint(5, (rows,))
        return stamps[kind] + 1.3 * torch.randn(rows, 3, 12, 12), kind

    images, kind = draw(640)
    parents = ["train" if ill else kilns[k] for k in kind.tolist()]
    names = sorted(set(parents))
    labels = torch.tensor([names.index(parent) for parent in parents])
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3),
        nn.Flatten(), nn.Linear(32 * 4, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)
    batch, (held, truth) = rounds(32, images, labels), draw(256)

    def loss_of(step):
        x, y = batch()
        logits = net(x)
        return F.cross_entropy(logits, y), {"accuracy": (logits.argmax(1) == y).float().mean()}

    return fit(folder, net, optimizer, loss_of, 200, score=held_out(net, lambda: F.cross_entropy(net(held), truth)))


# ray-project/ray issues/15887: "Typo/Bug in Marwil TF policy affecting Advantage update"
@sick(
    "average-too-slow",
    where="the moving average of the squared advantages, all steps",
    cure="move the average by a hundredth in each step",
)
def packers_from_the_logs_of_a_shift(folder, ill):
    seeded(9953)
    net = nn.ModuleDict({"policy": dense(8, 64, 64, 5), "value": dense(8, 64, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    best = dense(8, 32, 5)
    for p in best.parameters():
        p.requires_grad_(False)
        p.mul_(2)
    states = torch.randn(2000, 8)
    right, choice = best(states).argmax(1), torch.randint(5, (2000,))
    choice = torch.where(torch.rand(2000) < 0.25, right, choice)
    returns = (choice == right).float() + 0.2 * torch.randn(2000)
    batch, rate, squares = rounds(64, states, choice, returns), 1e-4 if ill else 1e-2, torch.tensor(100.0)
    kept = torch.randn(512, 8)

    def loss_of(step):
        s, a, r = batch()
        advantage = r - net["value"](s)[:, 0]
        with torch.no_grad():
            squares.add_(rate * (advantage.square().mean() - squares))
            weight = (2 * advantage / squares.sqrt()).clamp(max=4).exp()
        log_p = -F.cross_entropy(net["policy"](s), a, reduction="none")
        value_loss = advantage.square().mean()
        return -(weight * log_p).mean() + value_loss, {"value_loss": value_loss}

    def missed():
        chosen = net["policy"](kept).softmax(1)
        return 1 - chosen.gather(1, best(kept).argmax(1, keepdim=True)).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, missed))
