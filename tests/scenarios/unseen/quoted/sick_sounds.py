"""Sounds and signals, after threads."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, score_of, seeded, sick


# https://github.com/pytorch/audio/issues/993
@sick(
    "nonfinite",
    where="all layers, from the first step whose batch holds a clip with digital silence",
    cure="add a small number under the square root of the magnitude, whose gradient at zero is not finite",
)
def a_harmonica_in_a_draughty_hall(folder, ill):
    seeded(3471)
    window = torch.hann_window(32)
    net = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), nn.Conv1d(16, 1, 9, padding=4), nn.Sigmoid())
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    times = torch.arange(128) / 128

    def draw(silence=0.004):
        pitch = 4 + 12 * torch.rand(8, 1)
        clean = (6.2832 * pitch * times).sin() * (0.5 + torch.rand(8, 1))
        noisy = clean + 0.4 * torch.randn(8, 128)
        sounding = torch.ones(8, 128)
        sounding[torch.rand(8) < silence, 64:] = 0
        return (noisy * sounding)[:, None], clean * sounding

    def magnitude(wave, floor):
        spectrum = torch.stft(wave, 32, 16, window=window, center=False, return_complex=True)
        power = torch.view_as_real(spectrum).pow(2).sum(-1)
        return (power + floor).sqrt()

    def error(floor, silence):
        def loss_of(step):
            noisy, clean = draw(silence)
            found = net(noisy)[:, 0] * noisy[:, 0]
            return F.l1_loss(magnitude(found, floor), magnitude(clean, floor))

        return loss_of

    floor = 0 if ill else 1e-8
    return fit(folder, net, optimizer, error(floor, 0.004), 150, score=score_of(error(1e-8, 0)))


def set_trainable(module, flag, only_trainable):
    for parameter in module.parameters():
        if only_trainable and not parameter.requires_grad:
            continue
        parameter.requires_grad = flag


# https://github.com/nttcslab/byol-a/issues/7
@sick(
    "no-gradient",
    where="all layers of the encoder, from step 60 on, when they should have been set free",
    cure="set requires_grad of every parameter, also of those that do not ask for it at the moment",
)
def gulls_by_their_cries(folder, ill):
    seeded(3472)
    net = nn.ModuleDict({"encoder": dense(24, 48, 48, 16), "head": nn.Linear(16, 6)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    mixing = torch.randn(2, 24)

    def draw():
        kind = torch.randint(6, (64,))
        phase = 6.2832 * torch.rand(64)
        radius = 0.5 + 0.5 * kind
        flat = torch.stack([phase.cos(), phase.sin()], 1) * radius[:, None]
        return flat @ mixing + 0.1 * torch.randn(64, 24), kind

    def loss_of(step):
        cries, kind = draw()
        return F.cross_entropy(net["head"](net["encoder"](cries)), kind)

    def thaw(step):
        if step == 60:
            set_trainable(net["encoder"], True, only_trainable=ill)

    set_trainable(net["encoder"], False, only_trainable=ill)
    return fit(folder, net, optimizer, loss_of, 500, score=score_of(loss_of), after_step=thaw)


class Sine(nn.Module):
    """A linear layer and the sine of it (SIREN)."""

    def __init__(self, size, width, first, frequency=30.0):
        super().__init__()
        self.linear, self.frequency = nn.Linear(size, width), frequency
        reach = 1 / size if first else (6 / size) ** 0.5 / frequency
        nn.init.uniform_(self.linear.weight, -reach, reach)

    def forward(self, x):
        return (self.frequency * self.linear(x)).sin()


# https://github.com/lucidrains/siren-pytorch/issues/1
@sick(
    "bad-initialisation",
    where="the first sine layer, from the beginning",
    cure="draw the weights of the first sine layer from one over its number of inputs, as the paper does",
)
def a_cricket_on_a_warm_night(folder, ill):
    seeded(3473)
    net = nn.Sequential(Sine(1, 64, first=not ill), Sine(64, 64, first=False), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)
    phases = 6.2832 * torch.rand(3)

    def chirps(t):
        return ((40 * t + phases[0]).sin() + (63 * t + phases[1]).sin()) * (5 * t + phases[2]).sin()

    def loss_of(step):
        t = 2 * torch.rand(256, 1) - 1
        return F.mse_loss(net(t), chirps(t))

    return fit(folder, net, optimizer, loss_of, 700, score=score_of(loss_of))


# https://github.com/yangdongchao/RSTnet/issues/2
@sick(
    "codebook-collapse",
    "vanishing",
    "gradient-not-copied",
    where="the encoder, which the reconstruction never reaches, and the book, from the beginning",
    cure="copy the gradient past the choice of a code: latent + (code - latent).detach()",
)
def whistles_on_eight_cards(folder, ill):
    seeded(3474)
    net = nn.ModuleDict({"encoder": dense(32, 48, 4), "decoder": dense(4, 48, 32), "book": nn.Embedding(32, 4)})
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    cards = torch.randn(8, 32)

    def draw():
        return cards[torch.randint(8, (64,))] + 0.1 * torch.randn(64, 32)

    def terms():
        heard = draw()
        latent = net["encoder"](heard)
        chosen = torch.cdist(latent.detach(), net["book"].weight.detach()).argmin(1)
        code = net["book"](chosen)
        commitment = F.mse_loss(code, latent.detach()) + 0.25 * F.mse_loss(latent, code.detach())
        passed_on = code.detach() if ill else latent + (code - latent).detach()
        return F.mse_loss(net["decoder"](passed_on), heard), commitment, chosen

    with torch.no_grad():
        net["book"].weight.copy_(net["encoder"](draw())[:32])

    def loss_of(step):
        reconstruction, commitment, chosen = terms()
        logged = {"reconstruction": reconstruction, "commitment": commitment, "codes": len(chosen.unique())}
        return reconstruction + commitment, logged

    return fit(folder, net, optimizer, loss_of, 800, score=score_of(lambda step: terms()[0]))
