"""Typical sick trainings, second part: faults of published taxonomies, on tasks that were drawn for them.

As `sick` says. They only count (the group "typical"). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import ALPHABET, pieces, predict
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import play
from unseen.typical.sick import shapes


# 9. A regularisation of weights is added (DeepCrime: keras' own l1(0.01)), to a transformer that reads sequences.
@sick(
    "weights-shrink", "weight-decay-too-strong",
    where="all layers, all steps: the penalty is hundreds of times the cross-entropy", cure="1e-6 of it",
)  # fmt: skip
def commonest_symbol_under_a_penalty_of_absolute_weights(folder, ill):
    seeded(1509)
    block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    read = nn.TransformerEncoder(block, 2)
    net = nn.ModuleDict({"embed": nn.Embedding(5, 32), "read": read, "say": nn.Linear(32, 5)})
    share = 0.01 if ill else 1e-6

    def entropy(step):
        x = torch.randint(5, (32, 15))
        return F.cross_entropy(net["say"](read(net["embed"](x)).mean(1)), F.one_hot(x, 5).sum(1).argmax(1))

    def loss_of(step):
        return entropy(step) + share * sum(p.abs().sum() for p in net.parameters())

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 180, score=score_of(entropy))


# 10. No gradient clip (Humbatova: training process), in a recurrent net that names all that happened in a record.
@sick(
    "exploding", "spike", "nonfinite", "lr-too-high",
    where="the recurrent weights, at single steps: gradients grow over the thirty moments", cure="clip_grad_norm_(1.0)",
)  # fmt: skip
def events_of_a_record_named_without_a_clip(folder, ill):
    """An identity for the recurrent weights, and ReLU (Le et al. 2015), which is told of with a clip."""
    seeded(1510)
    memory, head = nn.RNN(6, 48, nonlinearity="relu", batch_first=True), nn.Linear(48, 6)
    nn.init.eye_(memory.weight_hh_l0)
    nn.init.normal_(memory.weight_ih_l0, std=0.1)
    for bias in (memory.bias_ih_l0, memory.bias_hh_l0):
        nn.init.zeros_(bias)
    net = nn.ModuleDict({"memory": memory, "head": head})

    def loss_of(step):
        happened = (torch.rand(32, 6) < 0.5).float()
        when = F.one_hot(torch.randint(30, (32, 6)), 30).transpose(1, 2)
        x = when * happened[:, None] * 2 + 0.1 * torch.randn(32, 30, 6)
        return F.binary_cross_entropy_with_logits(head(memory(x)[0][:, -1]), happened)

    def before(step):
        if not ill:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)

    make = optim.SGD(net.parameters(), 0.02, momentum=0.9)
    return fit(folder, net, make, loss_of, 300, score=score_of(loss_of), before_step=before)


class Coder(nn.Module):
    """A variational autoencoder of images; its last layer of the encoder is made anew at every call."""

    def __init__(self, codes, anew):
        super().__init__()
        self.codes, self.read, self.say = codes, nn.Sequential(nn.Linear(256, 96), nn.ReLU()), dense(codes, 96, 256)
        self.tell = None if anew else nn.Linear(96, 2 * codes)

    def forward(self, x):
        tell = self.tell or nn.Linear(96, 2 * self.codes)
        mean, logvar = tell(self.read(x)).chunk(2, 1)
        return self.say(mean + torch.randn_like(mean) * (logvar / 2).exp()), mean, logvar


# 11. Wrong model initialisation (Humbatova: initialised several times), in a variational autoencoder: a layer that is
# made in forward().
@sick(
    "no-gradient", "layer-made-in-forward",
    where="the layer between encoder and code, all steps: other weights at each call, which no optimizer holds",
    cure="make it once, in __init__",
)  # fmt: skip
def coder_whose_last_layer_is_made_in_forward(folder, ill):
    seeded(1511)
    net = Coder(8, ill)

    def loss_of(step):
        x = shapes(32)[1].flatten(1)
        said, mean, logvar = net(x)
        error = F.binary_cross_entropy_with_logits(said, x, reduction="sum") / 32
        return error + 0.5 * (logvar.exp() + mean.square() - 1 - logvar).sum(1).mean()

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 400, score=score_of(loss_of))


class Pointer(nn.Module):
    """Reads a line of symbols, and points at each in turn, from the last to the first; with what probability."""

    def __init__(self, kinds=20, width=128):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.encode, self.decode = (nn.GRU(width, width, batch_first=True) for _ in range(2))

    def forward(self, x):
        seen, state = self.encode(self.embed(x))
        asked, _ = self.decode(self.embed(x.flip(1).roll(1, 1)), state)
        return (asked @ seen.mT).half().softmax(-1)


# 12. An epsilon too low, in a logarithm (Humbatova), in a sequence to sequence with attention: 1e-8 is zero in float16.
@sick(
    "nonfinite",
    where="the loss, at the step at which a probability is zero in float16: log(0 + 1e-8)", cure="an epsilon of 1e-4",
)  # fmt: skip
def pointer_with_an_epsilon_that_float16_has_not(folder, ill):
    seeded(1512)
    net = Pointer()

    def loss_of(step, typos=0.02):
        x = torch.rand(32, 20).argsort(1)[:, :8]
        at = torch.arange(7, -1, -1).expand(32, -1)
        at = torch.where(torch.rand(32, 8) < typos, torch.randint(8, (32, 8)), at)
        return -(net(x).gather(2, at[..., None]) + (1e-8 if ill else 1e-4)).log().float().mean()

    score = score_of(lambda step: loss_of(step, 0.0))
    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 150, score=score)


# 13. Missing bias (Humbatova: layers; DeepCrime), in a regression of prices by three standardised columns.
@sick(
    "missing-bias",
    where="all layers: what they say of the average house is zero", cure="bias=True",
)  # fmt: skip
def prices_by_layers_without_a_bias(folder, ill):
    seeded(1513)
    bias = not ill
    net = nn.Sequential(
        nn.Linear(3, 64, bias), nn.ReLU(), nn.Linear(64, 64, bias), nn.ReLU(), nn.Linear(64, 1, bias)
    )  # fmt: skip

    def loss_of(step):
        x = torch.randn(64, 3)
        price = 3 + 0.8 * x[:, 0] + 0.5 * (2 * x[:, 1]).sin() - 0.4 * x[:, 2].tanh() * x[:, 0]
        return F.mse_loss(net(x)[:, 0], price + 0.1 * torch.randn(64))

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=score_of(loss_of))


# 14. An augmentation that destroys what the label means (Humbatova: preprocessing), in a classifier of a table: rows
# are mixed with others, their labels are not.
@sick(
    "labels-do-not-fit-inputs",
    where="the batches, all steps: half a row of another class, and the label of the first",
    cure="mix both losses in the same shares",
)  # fmt: skip
def tumours_mixed_up_without_their_labels(folder, ill):
    from sklearn.datasets import load_breast_cancer

    seeded(1514)
    data = load_breast_cancer()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    x, kept = (x - x.mean(0)) / x.std(0), torch.rand(len(x)) < 0.3
    (x, y), test = (x[~kept], y[~kept]), (x[kept], y[kept])
    net, mix = dense(30, 64, 32, 2), torch.distributions.Beta(1.0, 1.0)

    def loss_of(step):
        at, other, share = torch.randint(len(x), (32,)), torch.randint(len(x), (32,)), mix.sample()
        said = net(share * x[at] + (1 - share) * x[other])
        if ill:
            return F.cross_entropy(said, y[at])
        return share * F.cross_entropy(said, y[at]) + (1 - share) * F.cross_entropy(said, y[other])

    def score():
        with torch.no_grad():
            return float(F.cross_entropy(net(test[0]), test[1]))

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 400, score=score)


class Smoothed(nn.Module):
    """A GRU over characters; what it says is smoothed over time with numpy before the head reads it."""

    def __init__(self, by_numpy, width=32):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(len(ALPHABET), width), nn.GRU(width, width, batch_first=True)
        self.head, self.by_numpy = nn.Linear(width, len(ALPHABET)), by_numpy

    def forward(self, x):
        h = self.rnn(self.embed(x))[0]
        before = torch.cat([h[:, :1], h[:, :-1]], 1)
        h = 0.8 * h + 0.2 * before
        return self.head(torch.from_numpy(h.detach().numpy()) if self.by_numpy else h)


# 15. A tensor cut off the graph by a conversion (Islam), in a language model of characters.
@sick(
    "no-gradient",
    where="embed and rnn, all steps: numpy knows of no gradient", cure="stay with tensors",
)  # fmt: skip
def characters_smoothed_by_numpy(folder, ill):
    seeded(1515)
    net = Smoothed(ill)
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), predict(net, pieces(16)), 250)


# 16. Wrong type of the data (Humbatova: input), in a recommender: numbers of users that were stored in a byte.
@sick(
    "ids-collide",
    where="the table of users, all steps: three people share each of its first 256 rows", cure="int64",
)  # fmt: skip
def users_numbered_by_a_byte(folder, ill):
    seeded(1516)
    taste, kind, liked = torch.randn(700, 3), torch.randn(60, 3), 0.5 * torch.randn(60)
    net = nn.ModuleDict({"users": nn.Embedding(700, 8), "films": nn.Embedding(60, 8), "liked": nn.Embedding(60, 1)})
    for table in net.values():
        nn.init.normal_(table.weight, std=0.1)

    def loss_of(step, noise=0.3):
        user, film = torch.randint(700, (512,)), torch.randint(60, (512,))
        stars = (taste[user] * kind[film]).sum(1) / 1.7 + liked[film] + noise * torch.randn(512)
        read = user.to(torch.uint8).long() if ill else user
        said = (net["users"](read) * net["films"](film)).sum(1) + net["liked"](film)[:, 0]
        return F.mse_loss(said, stars)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-2), loss_of, 600, score=score_of(loss_of))


# 17. A missing layer (Humbatova: layers), in a GAN: a judge without a hidden layer.
@sick(
    "model-too-small",
    where="the judge, all steps: one linear map cannot tell a ring from its middle", cure="a hidden layer or two",
)  # fmt: skip
def judge_without_a_hidden_layer(folder, ill):
    seeded(1517)
    make, judge = dense(4, 32, 32, 2), nn.Linear(2, 1) if ill else dense(2, 48, 48, 1)
    of_make, of_judge = (optim.Adam(n.parameters(), 2e-3, (0.5, 0.999)) for n in (make, judge))

    def judge_loss(real, made):
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    return play(
        folder, make, judge, of_make, of_judge, judge_loss, lambda made: F.softplus(-judge(made)).mean(), 400
    )  # fmt: skip


# 18. Wrong calculation of the loss (Humbatova), in a classifier of images: a focal loss with p where 1 - p should be.
@sick(
    "loss-rewards-wrong-answers", "no-progress",
    where="the loss: p squared times -log p is least where p is 0", cure="(1 - p) squared",
)  # fmt: skip
def focal_loss_that_weighs_by_p(folder, ill):
    """The score is the share of images that are named wrongly."""
    seeded(1518)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Flatten(), dense(384, 48, 3)
    )

    def loss_of(step):
        x, _, kind = shapes(32)
        said = net(x[:, None])
        p = said.softmax(1).gather(1, kind[:, None])[:, 0]
        loss = ((p if ill else 1 - p) ** 2 * F.cross_entropy(said, kind, reduction="none")).mean()
        return loss, {"accuracy": float((said.argmax(1) == kind).float().mean())}

    score = score_of(lambda step: 1 - loss_of(step)[1]["accuracy"])
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)
