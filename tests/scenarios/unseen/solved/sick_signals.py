"""Sick trainings from public threads: generative nets, mixed precision, language models, embeddings and checkpoints."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick
from unseen.tasks import held_out, rounds


class Sundial(nn.Module):
    """A variational autoencoder of small grey pictures: convolutions down, a few latent values, convolutions up."""

    def __init__(self, latents=4):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(288, latents), nn.Linear(288, latents)
        self.widen = nn.Linear(latents, 288)
        self.up = nn.Sequential(
            nn.ReLU(), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Sigmoid()
        )

    def decode(self, z):
        return self.up(self.widen(z).view(-1, 32, 3, 3))

    def encode(self, x):
        features = self.down(x).flatten(1)
        return self.mean(features), self.log_variance(features)


def shadows(rows):
    """Pictures of 12 by 12 pixels in which one soft spot lies anywhere."""
    at, grid = 1 + 10 * torch.rand(rows, 2, 1, 1), torch.arange(12.0)
    return (-((grid[:, None] - at[:, :1]) ** 2 + (grid - at[:, 1:]) ** 2) / 4).exp()


# https://github.com/AppliedDataSciencePartners/WorldModels/issues/12
@sick("posterior-collapse", where="the layers of the mean and the variance of the code, from the first steps on: the "
      "divergence falls to nothing while the picture's error stays", cure="sum the squared error over the pixels as "
      "the divergence is summed over the code, or weigh the divergence less")  # fmt: skip
def shadow_on_a_sundial(folder, ill):
    seeded(2638)
    net, draw, fixed = Sundial(), rounds(64, shadows(1024)), shadows(256)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def loss_of(step):
        (x,) = draw()
        mean, log_variance = net.encode(x)
        made = net.decode(mean + torch.randn_like(mean) * (log_variance / 2).exp())
        error = (made - x).square().flatten(1)
        reconstruction = 10 * error.mean() if ill else 10 * error.sum(1).mean()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return reconstruction + divergence, {"vae_r_loss": reconstruction, "vae_kl_loss": divergence}

    score = held_out(net, lambda: F.mse_loss(net.decode(net.encode(fixed)[0]), fixed))
    return fit(folder, net, optimizer, loss_of, 500, score=score)


class Stethoscope(nn.Module):
    """A learned filter bank whose channels are brought to one loudness, then a recurrence over the recording."""

    def __init__(self, floor):
        super().__init__()
        self.bank = nn.Conv1d(1, 12, 9, stride=4, bias=False)
        self.memory, self.head, self.floor = nn.GRU(12, 24, batch_first=True), nn.Linear(24, 4), floor

    def forward(self, sound):
        heard = self.bank(sound[:, None]).float()
        spread = (heard.var(2, keepdim=True) + self.floor).sqrt()
        even = (heard - heard.mean(2, keepdim=True)) / (spread + 1e-6)
        return self.head(self.memory(even.transpose(1, 2))[0].mean(1))


def heartbeats(rows, silent):
    """Recordings of 80 samples whose pitch tells one of four murmurs; a share was recorded with the plug out."""
    kind = torch.randint(4, (rows,))
    time = torch.arange(80.0) + 40 * torch.rand(rows, 1)
    sound = (time * (0.25 + 0.12 * kind[:, None])).sin() + 0.6 * torch.randn(rows, 80)
    return sound * (torch.rand(rows, 1) > silent), kind


# https://github.com/pytorch/pytorch/issues/40497
@sick("skips-often", "nonfinite", "loss-scale-collapsed", where="all layers: the gradients of every other step are not "
      "finite, so the loss scale is halved again and again until what is left of the others rounds to zero, by about "
      "step 100", cure="an epsilon inside the square root, and a floor under the loss scale")  # fmt: skip
def murmurs_in_a_stethoscope(folder, ill):
    seeded(2639)
    net = Stethoscope(0.0 if ill else 1e-5)
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)
    scaler = torch.amp.GradScaler("cpu")
    fixed, kinds = heartbeats(512, 0.0)
    draw = rounds(16, *heartbeats(2048, 0.045))

    def loss_of(step):
        sound, kind = draw()
        with torch.autocast("cpu", torch.float16):
            found = net(sound)
        accuracy = (found.argmax(1) == kind).float().mean()
        return F.cross_entropy(found.float(), kind), {"accuracy": accuracy}

    score = held_out(net, lambda: F.cross_entropy(net(fixed), kinds))
    return fit(folder, net, optimizer, loss_of, 250, score=score, scaler=scaler)


class Catalogue(nn.Module):
    """A small BERT: an encoder, a head for the class of an entry and one that names the tokens that were masked."""

    def __init__(self, tokens=24, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(tokens + 1, width), nn.Embedding(12, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 4)
        self.mlm = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, tokens))
        self.apply(self.small)

    @staticmethod
    def small(layer):
        if isinstance(layer, (nn.Linear, nn.Embedding)):
            nn.init.normal_(layer.weight, std=0.02)

    def forward(self, tokens):
        states = self.encoder(self.words(tokens) + self.places.weight)
        return self.classifier(self.pooler(states[:, 0]).tanh()), self.mlm(states)


def entries(rows, series):
    """Numbers of twelve parts by the series they belong to, its class, and a mask over one in six."""
    of = torch.randint(len(series), (rows,))
    return of % 4, series[of], torch.rand(rows, 12) < 0.17


# https://github.com/google-research/bert/issues/306
@sick("not-in-optimizer", "weights-unchanged", where="the head of the masked language model: it gets gradients and is "
      "never stepped", cure="give the head's parameters to the optimizer as well")  # fmt: skip
def entries_of_a_parts_catalogue(folder, ill):
    seeded(2640)
    net, series = Catalogue(), torch.randint(24, (24, 12))
    trained = [p for name, p in net.named_parameters() if not (ill and name.startswith("mlm"))]
    optimizer = torch.optim.AdamW(trained, 2e-3, weight_decay=0.01)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40))

    def terms(rows=32):
        kind, tokens, masked = entries(rows, series)
        of_class, of_tokens = net(tokens.masked_fill(masked, 24))
        return F.cross_entropy(of_class, kind), F.cross_entropy(of_tokens[masked], tokens[masked])

    def loss_of(step):
        of_class, of_masked = terms()
        return of_class + of_masked, {"cls_loss": of_class, "masked_lm_loss": of_masked}

    score = score_of(lambda step: sum(terms(128)), 4)
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=warm)


class Guide(nn.Module):
    """Questions and passages to unit vectors by one encoder."""

    def __init__(self, tokens=800, width=32):
        super().__init__()
        self.words, self.body = nn.EmbeddingBag(tokens, width), dense(width, 64, width, act=nn.GELU)

    def forward(self, tokens):
        return F.normalize(self.body(self.words(tokens)), dim=-1)


class Museum:
    """Sixty exhibits, each with words that visitors use for it and words that its sign does."""

    def __init__(self, exhibits=60):
        self.exhibits = exhibits
        self.asked, self.told = torch.randint(300, (exhibits, 6)), 300 + torch.randint(500, (exhibits, 10))

    def words(self, own, of, length, low, high):
        picked = own[of].gather(1, torch.randint(own.shape[1], (len(of), length)))
        other = torch.randint(low, high, picked.shape)
        return torch.where(torch.rand(picked.shape) < 0.7, picked, other)

    def questions(self, of):
        return self.words(self.asked, of, 4, 0, 300)

    def passages(self, of):
        return self.words(self.told, of, 8, 300, 800)


# https://github.com/FlagOpen/FlagEmbedding/issues/713
@sick("logits-bounded", where="the loss, at all steps: cosines are its logits, undivided, and with one positive and "
      "three negatives it cannot fall far", cure="a temperature of 0.02 under the cosines")  # fmt: skip
def questions_to_a_museum_guide(folder, ill):
    seeded(2641)
    net, museum = Guide(), Museum()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    temperature = 1.0 if ill else 0.02
    asked, every = torch.arange(60).repeat(4), torch.arange(60)
    questions, passages = museum.questions(asked), museum.passages(every)

    def loss_of(step, rows=8, group=4):
        of = torch.randint(60, (rows,))
        others = (of[:, None] + torch.randint(1, 60, (rows, group - 1))) % 60
        shown = net(museum.passages(torch.cat([of[:, None], others], 1).flatten())).view(rows, group, -1)
        likeness = (net(museum.questions(of))[:, None] * shown).sum(2)
        return F.cross_entropy(likeness / temperature, torch.zeros(rows, dtype=torch.long))

    score = held_out(net, lambda: F.cross_entropy(net(questions) @ net(passages).T / 0.05, asked))
    return fit(folder, net, optimizer, loss_of, 600, score=score)


def footprints(rows, shapes):
    """Two prints of each of some tracks, smeared in the mud, and the beast that left them."""
    of = torch.randint(len(shapes), (rows,))
    track = shapes[of] + 0.3 * torch.randn(rows, shapes.shape[1])
    return *(track + 1.0 * torch.randn_like(track) for _ in range(2)), of


# https://github.com/wanggrun/triplet/issues/1
@sick("representation-collapse", "hard-negatives", where="the last layer of the encoder: all tracks come to lie at one "
      "point, and the loss sits at the margin to the last step", cure="negatives of a middle rank instead of the "
      "hardest one in the batch")  # fmt: skip
def tracks_of_forest_animals(folder, ill):
    seeded(2642)
    shapes = torch.randn(20, 24)
    net = dense(24, 64, 64, 16)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    margin, rank, (left, right, of) = 0.3, 0 if ill else 40, footprints(256, shapes)

    def embedded(x):
        return F.normalize(net(x), dim=1)

    def loss_of(step):
        first, second, _ = footprints(128, shapes)
        apart = 2 - 2 * embedded(first) @ embedded(second).T
        others = (apart + 9 * torch.eye(128)).sort(1).values
        return (apart.diagonal() - others[:, rank] + margin).relu().mean()

    def nearest_is_another():
        with torch.no_grad():
            found = of[(embedded(left) @ embedded(right).T).fill_diagonal_(-9).argmax(1)]
        return float((found != of).float().mean())

    return fit(folder, net, optimizer, loss_of, 400, score=nearest_is_another)


# https://github.com/PaddlePaddle/Paddle/issues/49382
@sick("optimizer-state-lost", where="all layers, at steps 100, 200 and 300 of 306: the loss jumps when the checkpoint "
      "is read, for Adam begins anew", cure="save and load the state of the optimizer with the weights")  # fmt: skip
def wear_of_a_turbine_blade(folder, ill):
    seeded(2643)
    way = torch.randn(10, 4)
    net = dense(10, 256, 256, 256, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(net.parameters(), 8e-3)
    blank = copy.deepcopy(optimizer.state_dict())
    x = torch.randn(2048, 10)
    y = (x @ way / 3).sin().sum(1, keepdim=True)
    draw = rounds(64, x, y)

    def loss_of(step):
        rows, wear = draw()
        return F.mse_loss(net(rows), wear)

    def read_checkpoint(step):
        if step % 100 == 99:
            saved = copy.deepcopy({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
            net.load_state_dict(saved["model"])
            optimizer.load_state_dict(blank if ill else saved["optimizer"])

    score = held_out(net, lambda: F.mse_loss(net(x), y))
    return fit(folder, net, optimizer, loss_of, 306, score=score, after_step=read_checkpoint)
