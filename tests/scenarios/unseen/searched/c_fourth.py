"""Words and letters: sorted, tagged, continued and rewritten."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from unseen import fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


def reviews(rows, words=120, longest=20):
    """Codes with zeros behind, lengths, and whether a review is kind; a "not" (1) turns the word after it."""
    feeling = torch.zeros(words)
    feeling[2:32], feeling[32:62] = 1, -1
    lengths = torch.randint(6, longest + 1, (rows,))
    codes = torch.randint(2, words, (rows, longest))
    codes[torch.rand(rows, longest) < 0.12] = 1
    codes[torch.arange(longest) >= lengths[:, None]] = 0
    after_not = F.pad(codes[:, :-1] == 1, (1, 0))
    total = (feeling[codes] * torch.where(after_not, -1.0, 1.0)).sum(1)
    kind = (total + 0.1 * torch.randn(rows) > 0).float()
    return codes, lengths, kind


class Reviewer(nn.Module):
    def __init__(self, words=120):
        super().__init__()
        self.embed = nn.Embedding(words, 32, padding_idx=0)
        self.lstm = nn.LSTM(32, 48, batch_first=True)
        self.drop, self.out = nn.Dropout(0.2), nn.Linear(48, 1)

    def forward(self, codes, lengths):
        packed = pack_padded_sequence(self.embed(codes), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.drop(self.lstm(packed)[1][0][-1]))[:, 0]


@healthy()
def comments_left_at_a_bakery(folder):
    seeded(9435)
    net = Reviewer()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    draw = rounds(64, *reviews(6400))
    codes, lengths, kind = reviews(600)

    def one(step):
        codes, lengths, kind = draw()
        optimizer.zero_grad()
        out = net(codes, lengths)
        loss = F.binary_cross_entropy_with_logits(out, kind)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss.item(), "acc": ((out > 0) == (kind > 0.5)).float().mean().item()}

    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(net(codes, lengths), kind))
    return tend(folder, net, optimizer, one, 400, score)


LETTERS = "abcdefghijklmnopqrstuvwxyz ."
WHO, DOES, WHAT = (
    ["the miller", "a neighbour", "my aunt", "the old ferryman", "a child"],
    ["mends", "carries", "forgets", "paints", "borrows", "sells"],
    ["a ladder", "the red boat", "some apples", "a clock", "the garden gate"],
)


def small_talk(sentences):
    parts = []
    for _ in range(sentences):
        chosen = [part[int(torch.randint(len(part), ()))] for part in (WHO, DOES, WHAT)]
        parts.append(" ".join(chosen) + ". ")
    return torch.tensor([LETTERS.index(letter) for letter in "".join(parts)])


class Writer(nn.Module):
    def __init__(self, width=48, depth=2, longest=32):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(LETTERS), width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.1, activation="gelu", norm_first=True, batch_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, len(LETTERS), bias=False)
        self.apply(self.begin)

    def begin(self, part):
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.body(h, mask=mask, is_causal=True))


@healthy()
def gossip_letter_by_letter(folder):
    seeded(9436)
    text, test = small_talk(700), small_talk(60)
    net = Writer()
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3, betas=(0.9, 0.95)
    )
    steps, warm = 260, 20

    def share(step):
        if step < warm:
            return (step + 1) / warm
        return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (steps - warm)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)

    def pieces(of, rows):
        starts = torch.randint(len(of) - 33, (rows, 1))
        both = of[starts + torch.arange(33)]
        return both[:, :-1], both[:, 1:]

    def entropy(x, y):
        return F.cross_entropy(net(x).flatten(0, 1), y.flatten())

    fresh = pieces(test, 64)
    return fit(
        folder,
        net,
        optimizer,
        lambda step: entropy(*pieces(text, 16)),
        steps,
        score=held_out(net, lambda: entropy(*fresh)),
        schedule=schedule,
        before_step=clipped(net, 1.0),
    )


def dates(rows):
    """Dates as day, month and year in two orders, and the same as six digits; 10 to 21 are months, 22 a slash."""
    day, month, year = torch.randint(1, 29, (rows,)), torch.randint(12, (rows,)), torch.randint(100, (rows,))
    slash = torch.full((rows,), 22)
    european = [day // 10, day % 10, slash, month + 10, slash, year // 10, year % 10]
    american = [month + 10, slash, day // 10, day % 10, slash, year // 10, year % 10]
    turned = torch.rand(rows, 1) < 0.5
    written = torch.where(turned, torch.stack(european, 1), torch.stack(american, 1))
    number = month + 1
    plain = [year // 10, year % 10, number // 10, number % 10, day // 10, day % 10]
    return written, torch.stack(plain, 1)


class Rewriter(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.read, self.write = nn.Embedding(23, 24), nn.Embedding(11, 24)
        self.encoder = nn.GRU(24, width, batch_first=True)
        self.decoder = nn.GRU(24, width, batch_first=True)
        self.out = nn.Linear(width, 10)

    def forward(self, x, y):
        state = self.encoder(self.read(x))[1]
        given = torch.cat([torch.full_like(y[:, :1], 10), y[:, :-1]], 1)
        return self.out(self.decoder(self.write(given), state)[0])


@healthy()
def dates_of_old_invoices(folder):
    seeded(9437)
    net = Rewriter()
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 250, gamma=0.5)
    x, y = dates(500)

    def entropy(x, y):
        out = net(x, y)
        return F.cross_entropy(out.flatten(0, 1), y.flatten()), (out.argmax(2) == y).all(1).float().mean()

    def loss_of(step):
        loss, exact = entropy(*dates(64))
        return loss, {"exact_match": exact}

    score = held_out(net, lambda: entropy(x, y)[0])
    return fit(folder, net, optimizer, loss_of, 550, score=score, schedule=schedule, before_step=clipped(net, 1.0))


def messages(rows, length=14, words=90):
    """Words and their tags: a name (60 and more) is a street (1, 2) behind "in" (3), else a person (3); -100 ends."""
    codes = torch.randint(4, words, (rows, length))
    codes[torch.rand(rows, length) < 0.15] = 3
    name, behind_in = codes >= 60, F.pad(codes[:, :-1] == 3, (1, 0))
    begins = name & behind_in
    inside = name & F.pad(begins[:, :-1], (1, 0))
    tags = torch.where(begins, 1, torch.where(inside, 2, torch.where(name, 3, 0)))
    past = torch.arange(length) >= torch.randint(5, length + 1, (rows, 1))
    return codes.masked_fill(past, 0), tags.masked_fill(past, -100)


class Tagger(nn.Module):
    def __init__(self, words=90):
        super().__init__()
        self.embed = nn.Embedding(words, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 4)

    def forward(self, codes):
        return self.out(self.lstm(self.embed(codes))[0])


@healthy()
def streets_named_in_short_messages(folder):
    seeded(9438)
    net = Tagger()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    draw = rounds(16, *messages(3000))
    codes, tags = messages(400)

    def entropy(codes, tags):
        return F.cross_entropy(net(codes).transpose(1, 2), tags, ignore_index=-100)

    def one(step):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(4):
            loss = entropy(*draw()) / 4
            loss.backward()
            total += loss.item()
        optimizer.step()
        return {"loss": total}

    return tend(folder, net, optimizer, one, 200, held_out(net, lambda: entropy(codes, tags)))


class Sorter(nn.Module):
    def __init__(self, words=200, desks=6):
        super().__init__()
        self.embed = nn.Embedding(words, 40)
        self.windows = nn.ModuleList(nn.Conv1d(40, 24, size) for size in (2, 3, 4))
        self.drop, self.out = nn.Dropout(0.5), nn.Linear(72, desks)

    def forward(self, codes):
        h = self.embed(codes).transpose(1, 2)
        return self.out(self.drop(torch.cat([F.relu(window(h)).amax(2) for window in self.windows], 1)))


@healthy()
def questions_passed_to_the_right_desk(folder):
    seeded(9439)
    phrases = torch.randint(200, (6, 5, 3))

    def questions(rows):
        desk = torch.randint(6, (rows,))
        codes = torch.randint(200, (rows, 16))
        at, which = torch.randint(14, (rows,)), torch.randint(5, (rows,))
        codes[torch.arange(rows)[:, None], at[:, None] + torch.arange(3)] = phrases[desk, which]
        return codes, desk

    net = Sorter()
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0, rho=0.95)
    draw = rounds(50, *questions(5000))
    codes, desk = questions(500)

    def loss_of(step):
        codes, desk = draw()
        out = net(codes)
        return F.cross_entropy(out, desk), {"accuracy": (out.argmax(1) == desk).float().mean()}

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: F.cross_entropy(net(codes), desk)))
