"""Trainings of language models, graphs, recommenders and autoencoders, each rebuilt from a thread with its cause."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, rounds

# -------------------------------------------------------------------------------------------------------- small GPTs


class Block(nn.Module):
    """Attention and a dense layer, both after a norm and added to what came in."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm, self.norm_two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asks, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense = dense(width, 4 * width, width, act=nn.GELU)

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.asks(self.norm(x)).chunk(3, 2))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.dense(self.norm_two(x))


class Writer(nn.Module):
    """A GPT of two blocks whose output shares the weights of its embedding."""

    def __init__(self, words, length, width=32, causal=True):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 2, causal) for _ in range(2)))
        self.norm = nn.LayerNorm(width)

    def read(self, text):
        return self.norm(self.blocks(self.words(text) + self.places.weight[: text.shape[1]]))

    def forward(self, text):
        return self.read(text) @ self.words.weight.T


def begin(net, embedding=0.02):
    """The start of a GPT-2: small weights and no biases."""
    for part in net.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=embedding)


def next_word(net, text):
    return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def changes(habits, rows, length):
    """Rows of a chain in which each word follows from the one before."""
    text = [torch.randint(len(habits), (rows,))]
    for _ in range(length - 1):
        text.append(torch.multinomial(habits[text[-1]].softmax(1), 1)[:, 0])
    return torch.stack(text, 1)


# https://github.com/NVIDIA-NeMo/Automodel/issues/1071
@sick("bad-initialisation", "no-gradient", "weights-unchanged",
      where="the embeddings `words` and `places`, which are all zero from the start, and the output tied to them",
      cure="the initialisation that was forgotten: embeddings with a deviation of 0.02")  # fmt: skip
def changes_of_the_bell_ringers(folder, ill):
    seeded(2526)
    net, habits = Writer(24, 16), 3 * torch.randn(24, 24)
    begin(net, 0.0 if ill else 0.02)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0.9, 0.95))
    heard = changes(habits, 4000, 16)
    draw, test = rounds(32, heard[256:]), heard[:256]
    score = held_out(net, lambda: next_word(net, test))
    return fit(folder, net, optimizer, lambda step: next_word(net, draw()[0]), 400, score=score,
               before_step=clipped(net, 1.0))  # fmt: skip


# https://github.com/huggingface/transformers/issues/48745
@sick("future-seen",
      where="the attention of both blocks: each place looks at the places after it, and the loss falls to nothing",
      cure="a causal mask on the attention")  # fmt: skip
def recipes_written_on(folder, ill):
    seeded(2527)
    net, habits = Writer(24, 16, causal=not ill), 3 * torch.randn(24, 24)
    begin(net)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    written = changes(habits, 4000, 16)
    draw, test = rounds(32, written[256:]), written[:256]

    def from_its_start():
        lengths = range(3, 15)
        return sum(F.cross_entropy(net(test[:, :n])[:, -1], test[:, n]) for n in lengths) / len(lengths)

    return fit(folder, net, optimizer, lambda step: next_word(net, draw()[0]), 500, score=held_out(net, from_its_start))


# https://github.com/huggingface/pytorch-openai-transformer-lm/pull/6
@sick("not-in-optimizer", "weights-unchanged",
      where="the new head `verdict`, at every step: it has gradients but no optimizer",
      cure="the parameters of the head among those of the optimizer")  # fmt: skip
def endings_that_fit_a_story(folder, ill):
    seeded(2528)
    body, verdict, habits = Writer(24, 16), nn.Linear(32, 2), 3 * torch.randn(2, 24, 24)
    begin(body)
    nn.init.normal_(verdict.weight, std=0.02)
    nn.init.zeros_(verdict.bias)
    net = nn.ModuleDict({"body": body, "verdict": verdict})

    def stories(rows):
        kind = torch.arange(rows) % 2
        both = [changes(habits[k], rows // 2, 16) for k in (0, 1)]
        return torch.stack(both, 1).flatten(0, 1), kind

    before = torch.optim.Adam(body.parameters(), 2e-3)
    for _ in range(200):
        before.zero_grad()
        next_word(body, stories(32)[0]).backward()
        before.step()
    optimizer = torch.optim.Adam((body if ill else net).parameters(), 2e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1, (t + 1) / 10) * (1 - t / 300))

    def both(text, kind):
        return F.cross_entropy(verdict(body.read(text)[:, -1]), kind), next_word(body, text)

    def loss_of(step):
        judged, written = both(*stories(8))
        return judged + 0.5 * written, {"verdict": float(judged), "language": float(written)}

    text, kind = stories(256)
    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: both(text, kind)[0]),
               schedule=schedule, before_step=clipped(net, 1.0))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- graphs


class Neighbours(nn.Module):
    """Two rounds in which each node hears its neighbours."""

    def __init__(self, edges, size, width=32):
        super().__init__()
        self.register_buffer("edges", edges)
        self.hear = nn.ModuleList([nn.Linear(size, width), nn.Linear(width, width)])
        self.keep = nn.ModuleList([nn.Linear(size, width), nn.Linear(width, width)])

    def forward(self, x):
        for hear, keep in zip(self.hear, self.keep, strict=True):
            x = F.relu(hear(self.edges @ x) + keep(x))
        return x


# https://github.com/shenyangHuang/TGB/issues/83
@sick("softmax-twice", "activation-on-logits", "logits-bounded",
      where="the end of the decoder `link`, at every step: a sigmoid before a loss that has a sigmoid of its own",
      cure="no sigmoid in the decoder")  # fmt: skip
def canals_between_market_towns(folder, ill):
    seeded(2529)
    towns, guild = 120, torch.randint(5, (120,))
    linked = (torch.rand(towns, towns) < torch.where(guild[:, None] == guild, 0.35, 0.02)).float().triu(1)
    linked = linked + linked.T
    kept = linked * (torch.rand(towns, towns).triu(1) < 0.8).float()
    kept = kept + kept.T
    net = nn.ModuleDict({
        "towns": Neighbours(kept / kept.sum(1, keepdim=True).clamp(min=1), 16),
        "one": nn.Linear(32, 32), "other": nn.Linear(32, 32), "link": nn.Linear(32, 1),
    })  # fmt: skip
    known = F.one_hot(guild, 5).float() @ torch.randn(5, 16) + torch.randn(towns, 16)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def pairs(table, rows):
        yes, no = (torch.nonzero(t) for t in (table, 1 - linked))
        return torch.cat([ends[torch.randint(len(ends), (rows,))] for ends in (yes, no)])

    def decode(ends):
        seen = net["towns"](known)
        return net["link"](F.relu(net["one"](seen[ends[:, 0]]) + net["other"](seen[ends[:, 1]])))[:, 0]

    def loss_of(step):
        out = decode(pairs(kept, 32))
        return F.binary_cross_entropy_with_logits(out.sigmoid() if ill else out, true[:64])

    true = torch.cat([torch.ones(32), torch.zeros(32), torch.ones(300), torch.zeros(300)])
    test = pairs(linked - kept, 300)
    score = held_out(net, lambda: F.binary_cross_entropy_with_logits(decode(test), true[64:]))
    return fit(folder, net, optimizer, loss_of, 300, score=score)


# -------------------------------------------------------------------------------------------------------- recommenders


# https://github.com/alibaba/EasyRec/issues/23
@sick("inputs-not-normalised",
      where="the first layer of `deep`, from the first step on: prices and seconds in the thousands beside embeddings",
      cure="raw features scaled to mean 0 and deviation 1, or cut into bins")  # fmt: skip
def orders_from_a_seed_catalogue(folder, ill):
    seeded(2530)
    net = nn.ModuleDict({"who": nn.Embedding(60, 8), "what": nn.Embedding(40, 8), "deep": dense(20, 64, 32, 1)})
    for table in ("who", "what"):
        nn.init.normal_(net[table].weight, std=0.05)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    taste, rows = torch.randn(60, 40), 4000
    who, what = torch.randint(60, (rows,)), torch.randint(40, (rows,))
    plain = torch.randn(rows, 4)
    raw = plain * torch.tensor([900.0, 12.0, 20000.0, 300.0]) + torch.tensor([2500.0, 45.0, 43000.0, 800.0])
    drawn = taste[who, what] + plain @ torch.tensor([-1.5, 0.8, 1.0, -1.0])
    bought = (drawn + 0.3 * torch.randn(rows) > 0).float()

    def entropy(who, what, raw, bought):
        raw = raw if ill else (raw - mean) / spread
        seen = torch.cat([net["who"](who), net["what"](what), raw], 1)
        return F.binary_cross_entropy_with_logits(net["deep"](seen)[:, 0], bought)

    mean, spread = raw.mean(0), raw.std(0)
    draw = rounds(64, who[500:], what[500:], raw[500:], bought[500:])
    score = held_out(net, lambda: entropy(who[:500], what[:500], raw[:500], bought[:500]))
    return fit(folder, net, optimizer, lambda step: entropy(*draw()), 400, score=score)


# -------------------------------------------------------------------------------------------------------- autoencoders


# https://stats.stackexchange.com/questions/485488/should-reconstruction-loss-be-computed-as-sum-or-average-over-input-for-variatio
@sick("posterior-collapse",
      where="the encoder's `mean` and `spread`, from the first hundred steps on: the divergence is driven to nothing",
      cure="the reconstruction summed over the pixels, times their number")  # fmt: skip
def stamps_on_old_pottery(folder, ill):
    seeded(2531)
    net = nn.ModuleDict({
        "encode": nn.Sequential(nn.Linear(100, 64), nn.ReLU()), "mean": nn.Linear(64, 2), "spread": nn.Linear(64, 2),
        "decode": dense(2, 64, 64, 100),
    })  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    across = torch.linspace(-1, 1, 10)

    def stamps(rows):
        x, y = 1.2 * torch.rand(2, rows, 1, 1) - 0.6
        near = (across[:, None] - x).square() + (across - y).square() < 0.2
        return near.float().flatten(1)

    def parts(stamp):
        seen = net["encode"](stamp)
        mean, spread = net["mean"](seen), net["spread"](seen)
        code = mean + (spread / 2).exp() * torch.randn_like(mean)
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).mean()
        return F.binary_cross_entropy_with_logits(net["decode"](code), stamp), divergence

    def loss_of(step):
        pixels, divergence = parts(stamps(64))
        pixels = pixels if ill else pixels * 100
        return pixels + divergence, {"reconstruction": float(pixels), "kl": float(divergence)}

    test = stamps(256)
    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, lambda: parts(test)[0]))
