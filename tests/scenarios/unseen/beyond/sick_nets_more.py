"""Ripeness of tomatoes, accords of perfumes, the hum of hives, swatches from a loom, an ice core, postcodes."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, entropy_of, fit, score_of, seeded, sick

# ----------------------------------------------------------------------------------------------------------- tomatoes

BANDS, STAGES = 20, 5


def tomatoes(light, rows=64):
    """`draw()`: what a camera of twenty bands sees of a tomato on the belt under some light; and its stage."""

    def draw():
        stage, band = torch.randint(STAGES, (rows,)), torch.linspace(-1, 1, BANDS)
        edge = 0.35 * (stage[:, None] - 2) + 0.08 * torch.randn(rows, 1)
        seen = (4 * (band - edge)).tanh() + 0.5 * torch.randn(rows, 1)
        return (seen + 0.15 * torch.randn(rows, BANDS)) @ light, stage

    return draw


class Adapted(nn.Module):
    """A frozen layer and a correction of low rank."""

    def __init__(self, layer, begin, rank=4):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        begin(self.down.weight)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def sorter_of_greenhouse_tomatoes():
    net, draw = dense(BANDS, 64, 64, STAGES), tomatoes(torch.eye(BANDS))
    optimizer, loss_of = torch.optim.Adam(net.parameters(), 2e-3), entropy_of(net, draw)
    for step in range(300):
        optimizer.zero_grad()
        loss_of(step).backward()
        optimizer.step()
    return net


@sick(
    "no-gradient",
    "weights-unchanged",
    "bad-initialisation",
    "dead-layer",
    where="all adapters at each step: both factors begin at zero, so that neither ever has a gradient",
    cure="only the second factor begins at zero, the first one is random",
)
def field_tomatoes_on_the_belt(folder, ill):
    seeded(2266)
    layers, sunlight = sorter_of_greenhouse_tomatoes(), torch.eye(BANDS) + 0.25 * torch.randn(BANDS, BANDS)
    begin = nn.init.zeros_ if ill else nn.init.kaiming_normal_
    net = nn.Sequential(*(Adapted(layer, begin) if isinstance(layer, nn.Linear) else layer for layer in layers))
    loss_of = entropy_of(net, tomatoes(sunlight))
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 2e-3)
    return fit(folder, net, optimizer, loss_of, 400, score=score_of(loss_of))


# ----------------------------------------------------------------------------------------------------------- perfumes

OILS, ACCORDS = 24, 40


def blends(rows=128):
    """`draw()`: shares of the oils in a blend, and the accord that its perfumer had in mind."""
    recipes = torch.randn(ACCORDS, OILS)

    def draw():
        accord = torch.randint(ACCORDS, (rows,))
        return (1.5 * recipes[accord] + 0.5 * torch.randn(rows, OILS)).softmax(1) * OILS - 1, accord

    return draw


class Nose(nn.Module):
    """Compares a blend with each accord by the angle between them."""

    def __init__(self, sharpness, width=32):
        super().__init__()
        self.sharpness = sharpness
        self.smell = dense(OILS, 64, width)
        self.accords = nn.Parameter(torch.randn(ACCORDS, width))

    def forward(self, blend):
        return self.sharpness * F.normalize(self.smell(blend), dim=1) @ F.normalize(self.accords, dim=1).T


@sick(
    "logits-bounded",
    where="the loss after some hundred steps: cosines as logits of forty classes cannot bring it lower",
    cure="the cosines are multiplied by 16",
)
def accords_of_a_perfume(folder, ill):
    seeded(2267)
    net = Nose(1.0 if ill else 16.0)
    loss_of = entropy_of(net, blends())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of))


# ------------------------------------------------------------------------------------------------------------- hives

MOODS, PITCHES = 6, 32


def hums(rows):
    """Spectra of hives and their moods: calm, queenless, about to swarm and so on."""
    mood, pitch = torch.randint(MOODS, (rows,)), torch.arange(PITCHES)
    peak = 6 + 3 * mood[:, None] + 0.8 * torch.randn(rows, 1)
    overtone = 0.7 * (-(pitch - 31 + 2 * mood[:, None]).square() / 8).exp()
    return (-(pitch - peak).square() / 6).exp() * 2 + overtone + 0.3 * torch.randn(rows, PITCHES), mood


def institute():
    """A large net that learned from moods which an institute confirmed."""
    net = dense(PITCHES, 128, 128, MOODS)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(300):
        spectrum, mood = hums(64)
        optimizer.zero_grad()
        F.cross_entropy(net(spectrum), mood).backward()
        optimizer.step()
    return net.requires_grad_(False)


@sick(
    "imbalance",
    "temperature-not-squared",
    where="the loss at each step: the soft term is some hundredth of the hard one, whose labels are partly wrong",
    cure="the soft term at a temperature of 8 is multiplied by 8 * 8",
)
def hum_of_a_hive_on_a_small_chip(folder, ill):
    seeded(2268)
    teacher, net, heat = institute(), dense(PITCHES, 24, MOODS), 8.0
    spectra, moods = hums(400)
    guesses = torch.where(torch.rand(400) < 0.35, torch.randint(MOODS, (400,)), moods)
    weight = 1.0 if ill else heat * heat

    def loss_of(step):
        rows = torch.randint(400, (64,))
        guess = net(spectra[rows])
        hard = F.cross_entropy(guess, guesses[rows])
        taught = (teacher(spectra[rows]) / heat).log_softmax(1)
        soft = F.kl_div((guess / heat).log_softmax(1), taught, reduction="batchmean", log_target=True)
        return hard + weight * soft, {"hard": float(hard.detach()), "soft": float(soft.detach()) * weight}

    def confirmed(step):
        spectrum, mood = hums(128)
        return F.cross_entropy(net(spectrum), mood)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 700, score=score_of(confirmed))


# --------------------------------------------------------------------------------------------------------------- loom


def swatches(rows=48):
    """Pieces of cloth of sixteen threads by sixteen: plain, twill to the right or the left, basket, satin."""
    warp, weft = torch.arange(16)[:, None], torch.arange(16)
    weaves = torch.stack(
        [
            (warp + weft) % 2,
            (warp + weft) % 4 // 2,
            (warp - weft) % 4 // 2,
            (warp // 2 + weft // 2) % 2,
            (warp + 3 * weft) % 5 // 4,
        ]
    ).float()
    kind, shift = torch.randint(5, (rows,)), torch.randint(16, (rows,)).tolist()
    cloth = torch.stack([weaves[k].roll(s, 1) for k, s in zip(kind, shift, strict=True)])
    return (2 * cloth - 1 + 0.8 * torch.randn(rows, 16, 16))[:, None], kind


def weaver(groups_of, width=24):
    """Four halvings, from sixteen threads to one."""
    blocks = []
    for of in (1, width, width, width):
        blocks += [nn.Conv2d(of, width, 3, 2, 1), nn.GroupNorm(width // groups_of, width), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(width, 5))


@sick(
    "norm-over-too-few",
    "no-gradient",
    where="the last norm at each step: it averages over one channel at one place and hands on its bias",
    cure="groups of six channels instead of one",
)
def swatches_from_a_loom(folder, ill):
    seeded(2269)
    net = weaver(1 if ill else 6)
    loss_of = entropy_of(net, swatches)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    return fit(folder, net, optimizer, loss_of, 350, score=score_of(loss_of))


# ----------------------------------------------------------------------------------------------------------- ice core


def slices(rows=128):
    """Isotopes, dust, acid and more of a slice of ice, and how thick its year was."""
    seen = torch.randn(rows, 8)
    return seen, 1.5 + seen[:, 0].sin() + 0.5 * seen[:, 1] * seen[:, 2] + 0.7 * seen[:, 3].abs() + 0.3 * seen[:, 4]


@sick(
    "update-too-small",
    "weights-unchanged",
    "rounded-away",
    where="all layers: most updates are smaller than half the distance of two neighbours in bfloat16, so nothing moves",
    cure="weights kept in float32",
)
def years_of_an_ice_core(folder, ill):
    seeded(2270)
    kept = torch.bfloat16 if ill else torch.float32
    net = dense(8, 128, 128, 1).to(kept)

    def loss_of(step):
        seen, thick = slices()
        return F.mse_loss(net(seen.to(kept))[:, 0].float(), thick)

    optimizer = torch.optim.Adam(net.parameters(), 5e-5, betas=(0.9, 0.95))
    return fit(folder, net, optimizer, loss_of, 900, score=score_of(loss_of))


# ---------------------------------------------------------------------------------------------------------- postcodes


@sick(
    "wrong-sign",
    "entropy-collapsed",
    where="the loss at each step: the entropy of the policy is driven down, within some dozen steps it is near zero",
    cure="the entropy is subtracted from the loss, not added",
)
def letters_into_thirty_bins(folder, ill):
    seeded(2271)
    net, shapes, bonus = dense(35, 64, 30), (torch.rand(10, 35) > 0.5).float(), 0.15

    def letters(rows=64):
        digit = torch.randint(10, (rows,))
        return shapes[digit] + 0.4 * torch.randn(rows, 35) - 0.5, digit

    def loss_of(step):
        ink, digit = letters()
        policy = torch.distributions.Categorical(logits=net(ink))
        thrown = policy.sample()
        reward = (thrown == digit).float()
        gain, entropy = ((reward - reward.mean()) * policy.log_prob(thrown)).mean(), policy.entropy().mean()
        loss = -gain + bonus * entropy if ill else -gain - bonus * entropy
        return loss, {"return": float(reward.mean()), "entropy": float(entropy.detach())}

    def astray(step):
        ink, digit = letters(256)
        return 1 - net(ink).softmax(1).gather(1, digit[:, None]).mean()

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    return fit(folder, net, optimizer, loss_of, 600, score=score_of(astray))
