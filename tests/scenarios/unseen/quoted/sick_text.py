"""Mistakes with words and tokens, after threads in public."""

import torch
from nets import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from unseen import fit, score_of, seeded, sick


class Adapted(nn.Module):
    """A frozen linear layer with an adapter of low rank beside it."""

    def __init__(self, base, rank=8, scale=2.0):
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.wide, self.narrow = Adapted(nn.Linear(width, 2 * width)), Adapted(nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Reader(nn.Module):
    """Blocks that are computed again in the backward pass to save memory, and a head for what is to be told."""

    def __init__(self, words, width, classes, reentrant):
        super().__init__()
        self.embed = nn.Embedding(words, width).requires_grad_(False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, classes)
        self.reentrant = reentrant

    def forward(self, x):
        h = self.embed(x).mean(1) * 3
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.reentrant) if self.training else block(h)
        return self.head(h)


# https://github.com/huggingface/transformers/issues/26221
@sick(
    "no-gradient",
    where="the adapters (down, up) of all blocks, from the first step on; only the head learns",
    cure="checkpoint with use_reentrant=False, or let the frozen embedding's output require a gradient",
)
def letters_to_a_newspaper(folder, ill):
    seeded(3489)
    net = Reader(40, 32, 4, reentrant=ill)
    taste = net.embed.weight @ torch.randn(32, 2) / 5

    def draw():
        x = torch.randint(40, (64, 6))
        flat = taste[x].mean(1)
        return x, (flat.norm(dim=1) > 0.5).long() * 2 + (flat.prod(1) > 0).long()

    def loss_of(step):
        x, y = draw()
        out = net(x)
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-3)
    return fit(folder, net, optimizer, loss_of, 300, score=score_of(lambda step: loss_of(step)[0], 20))


# https://github.com/haotian-liu/LLaVA/issues/1301
@sick(
    "lr-too-high",
    "update-too-large",
    where="the adapters: the loss falls at first, climbs, and keeps swinging",
    cure="a tenth of the learning rate",
)
def house_numbers_turned_on_their_side(folder, ill):
    seeded(3490)
    x, y = digits()
    side = x.rot90(1, (1, 2)).contiguous().flatten(1)
    body = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    before = torch.optim.Adam(body.parameters(), 2e-3)
    for _ in range(200):
        at = torch.randint(1400, (64,))
        before.zero_grad()
        F.cross_entropy(body(x.flatten(1)[at]), y[at]).backward()
        before.step()
    net = nn.Sequential(*[Adapted(m, scale=4.0) if isinstance(m, nn.Linear) else m for m in body])
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 0.1 if ill else 0.01)

    def loss_of(step):
        at = torch.randint(1400, (32,))
        return F.cross_entropy(net(side[at]), y[at])

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(side[1400:]), y[1400:]))

    return fit(folder, net, optimizer, loss_of, 300, score=score)


class Singer(nn.Module):
    """Says which token comes next after a song of a fixed length."""

    def __init__(self, notes, length, width, pooled):
        super().__init__()
        self.embed, self.place = nn.Embedding(notes, width), nn.Parameter(0.1 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, norm_first=True, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, notes)
        self.pooled = pooled

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.body(self.embed(x) + self.place, mask=mask, is_causal=True)
        h = h.mean(1) if self.pooled else h[:, -1]
        return self.head(self.norm(h))


# https://github.com/ooples/AiDotNet/issues/1232
@sick(
    "pooled-over-positions",
    where="between the body and the head: the positions are averaged before the next token is told",
    cure="the head reads the last position",
)
def next_note_of_a_blackbird(folder, ill):
    seeded(3491)
    follows = torch.randperm(24)
    net = Singer(24, 24, 32, pooled=ill)

    def draw():
        song = [torch.randint(24, (48,))]
        for _ in range(24):
            song.append(torch.where(torch.rand(48) < 0.6, follows[song[-1]], torch.randint(24, (48,))))
        song = torch.stack(song, 1)
        return song[:, :-1], song[:, -1]

    def loss_of(step):
        x, y = draw()
        return F.cross_entropy(net(x), y)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 200, score=score_of(loss_of))


# https://github.com/huggingface/transformers/issues/20797
@sick(
    "unmasked-tokens-in-loss",
    "labels-not-shifted",
    "future-seen",
    where="the labels: most positions ask for the token that stands in the input",
    cure="-100 as the label of every token that is not masked",
)
def gaps_in_a_knitting_pattern(folder, ill):
    seeded(3492)
    stitches, mask = 16, 16
    partner = torch.randperm(stitches)
    embed, place = nn.Embedding(stitches + 1, 32), nn.Embedding(12, 32)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, norm_first=True, batch_first=True)
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = nn.ModuleDict({"embed": embed, "place": place, "body": body, "head": nn.Linear(32, stitches)})

    def draw():
        left = torch.randint(stitches, (32, 6))
        x = torch.cat([left, partner[left]], 1)
        return x, torch.rand(x.shape) < 0.15

    def tell(x, hidden):
        return net["head"](net["body"](net["embed"](x.masked_fill(hidden, mask)) + net["place"].weight))

    def loss_of(step):
        x, hidden = draw()
        labels = x if ill else torch.where(hidden, x, -100)
        return F.cross_entropy(tell(x, hidden).flatten(0, 1), labels.flatten())

    def gaps(step):
        x, hidden = draw()
        return F.cross_entropy(tell(x, hidden)[hidden], x[hidden])

    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    return fit(folder, net, optimizer, loss_of, 200, score=score_of(gaps))
