"""Latent variables, codebooks, entropies and labels, from what people asked about in public."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


# https://github.com/zdebruine/MMVAE/pull/19
@sick(
    "imbalance",
    "posterior-collapse",
    "loss-terms-imbalanced",
    "loss-terms-unbalanced",
    where="the logged divergence, zero after a few dozen steps: it is a sum over all, beside a mean over all",
    cure="sum the squared error over the genes too, and divide both by the rows of the batch",
)
def genes_of_single_cells(folder, ill):
    seeded(2394)
    net = nn.ModuleDict({"encoder": dense(40, 64, 8), "decoder": dense(4, 64, 40)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    pathways = torch.randn(4, 40)

    def cells(rows=64):
        return (torch.randn(rows, 4) @ pathways).tanh() + 0.1 * torch.randn(rows, 40)

    def loss_of(step):
        genes = cells()
        mean, logvar = net["encoder"](genes).chunk(2, 1)
        found = net["decoder"](mean + (logvar / 2).exp() * torch.randn_like(mean))
        kl = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum()
        if ill:
            error = F.mse_loss(found, genes)
        else:
            error, kl = F.mse_loss(found, genes, reduction="sum") / len(genes), kl / len(genes)
        return error + kl, {"reconstruction": error, "kl": kl}

    def rebuilt(step):
        genes = cells()
        return F.mse_loss(net["decoder"](net["encoder"](genes).chunk(2, 1)[0]), genes)

    return fit(folder, net, optimizer, loss_of, 600, score=score_of(rebuilt))


class Codes(nn.Module):
    """The nearest of some codes; what is behind it gets its gradient as if it were not there."""

    def __init__(self, kinds, width, spread):
        super().__init__()
        self.table = nn.Embedding(kinds, width)
        with torch.no_grad():
            self.table.weight.copy_(spread(kinds, width))

    def forward(self, z):
        nearest = torch.cdist(z, self.table.weight).argmin(1)
        code = self.table(nearest)
        cost = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return z + (code - z).detach(), cost, nearest


def usage_of(nearest, kinds):
    share = torch.bincount(nearest, minlength=kinds) / len(nearest)
    return (-(share * (share + 1e-10).log()).sum()).exp()


# https://github.com/lucidrains/vector-quantize-pytorch/issues/19
@sick(
    "codebook-collapse",
    "bad-initialisation",
    where="the codebook: one or two of its codes are ever the nearest, from the first step on",
    cure="draw the codes uniformly between minus and plus one over their number",
)
def tiles_of_a_mosaic(folder, ill):
    seeded(2395)
    kinds = 64
    spread = torch.randn if ill else lambda *size: (2 * torch.rand(size) - 1) / kinds
    codes = Codes(kinds, 16, spread)
    net = nn.ModuleDict({"encoder": dense(20, 64, 16), "codes": codes, "decoder": dense(16, 64, 20)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    motifs = torch.randn(24, 20)

    def tiles(rows=128):
        return motifs[torch.randint(24, (rows,))] + 0.1 * torch.randn(rows, 20)

    def loss_of(step):
        tile = tiles()
        code, cost, nearest = codes(net["encoder"](tile))
        error = F.mse_loss(net["decoder"](code), tile)
        return error + cost, {"reconstruction": error, "perplexity": usage_of(nearest, kinds)}

    def rebuilt(step):
        tile = tiles()
        return F.mse_loss(net["decoder"](codes(net["encoder"](tile))[0]), tile)

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(rebuilt))


# https://github.com/google-deepmind/open_spiel/issues/962
@sick(
    "wrong-sign",
    "entropy-minimised",
    "entropy-collapse",
    where="the logged entropy, which goes to nothing within a hundred steps, and the actor's gradients with it",
    cure="subtract the entropy from the loss",
)
def stalls_of_a_night_market(folder, ill):
    seeded(2396)
    net = nn.ModuleDict({"body": dense(8, 48, 48), "actor": nn.Linear(48, 10), "critic": nn.Linear(48, 1)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    taste = torch.randn(8, 10)

    def evenings(rows=64):
        mood = torch.randn(rows, 8)
        return mood, (mood @ taste).argmax(1)

    def loss_of(step):
        mood, best = evenings()
        hidden = net["body"](mood).relu()
        choice = Categorical(logits=net["actor"](hidden))
        stall = choice.sample()
        reward = (stall == best).float()
        gain = reward - net["critic"](hidden)[:, 0]
        policy = -(choice.log_prob(stall) * gain.detach()).mean()
        entropy = choice.entropy().mean()
        loss = policy + 0.5 * gain.square().mean() + (0.1 if ill else -0.1) * entropy
        return loss, {"return": reward.mean(), "entropy": entropy}

    def missed(step):
        mood, best = evenings(256)
        chance = net["actor"](net["body"](mood).relu()).softmax(1)
        return 1 - chance.gather(1, best[:, None]).mean()

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(missed))


class Translator(nn.Module):
    """Reads a sequence, then writes another one, each token from those before it."""

    def __init__(self, kinds, width=48):
        super().__init__()
        self.words = nn.Embedding(kinds + 1, width)
        self.reader, self.writer = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(width, kinds)

    def forward(self, read, written):
        _, gist = self.reader(self.words(read))
        return self.head(self.writer(self.words(written), gist)[0])


# https://github.com/huggingface/transformers/pull/46898
@sick(
    "labels-shifted-twice",
    "labels-not-shifted",
    "labels-mismatched",
    "labels-do-not-fit-inputs",
    where="the loss: the writer's inputs are shifted, and its labels are shifted once more",
    cure="compare each place with the label of that place, since the inputs are shifted already",
)
def calls_of_a_bird_into_words(folder, ill):
    seeded(2397)
    kinds, length = 8, 5
    net = Translator(kinds)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)

    def calls(rows=64):
        heard = torch.randint(kinds, (rows, length))
        return heard, (heard + heard.roll(1, 1)) % kinds

    def entropy(shifted):
        heard, words = calls()
        begin = torch.full((len(words), 1), kinds)
        logits = net(heard, torch.cat([begin, words[:, :-1]], 1))
        if shifted:
            logits, words = logits[:, :-1], words[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), words.flatten())

    return fit(folder, net, optimizer, lambda step: entropy(ill), 700, score=score_of(lambda step: entropy(False)))
