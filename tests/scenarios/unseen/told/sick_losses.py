"""Told sick trainings, second part: losses and data.

They only count (the group `told`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from nets import batches, classify, mlp
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, fit, score_of, seeded, sick
from unseen.asked.healthy import Marker
from unseen.asked.sick_losses import painted
from unseen.reported.sick import pretrain
from unseen.tasks import circle, play


# "Reversed Sign?" (of the divergence in the VAE's loss), github.com/pytorch/examples/issues/298
@sick(
    "negative-loss", "wrong-sign", "loss-unbounded",
    where="the encoder, from the first steps: the further from the prior, the lower the loss",
    cure="-0.5 * sum(1 + logvar - mu**2 - exp(logvar)), added",
)  # fmt: skip
def divergence_that_is_maximised(folder, ill):
    seeded(721)
    net, draw = nn.ModuleDict({"encode": dense(64, 64, 16), "decode": dense(8, 64, 64)}), batches(64)

    def terms(step):
        x = draw(step)[0].flatten(1)
        mean, log = net["encode"](x).chunk(2, 1)
        z = mean + (0.5 * log).exp() * torch.randn_like(mean)
        rebuilt = F.binary_cross_entropy_with_logits(net["decode"](z), x, reduction="none").sum(1).mean()
        return rebuilt, 0.5 * (mean.square() + log.exp() - 1 - log).sum(1).mean()

    def loss_of(step):
        rebuilt, apart = terms(step)
        return rebuilt - apart if ill else rebuilt + apart

    score = score_of(lambda step: sum(terms(step)))
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 300, score=score)


# "Add Parameter clipping to Wasserstein GAN" (it was missing), github.com/torchgan/torchgan/pull/42
@sick(
    "loss-unbounded", "weight-growth", "exploding",
    where="the critic, which grows without end, and then the maker",
    cure="clamp the critic's weights after its step, or a penalty of its gradient",
)  # fmt: skip
def critic_without_a_bound(folder, ill) -> Outcome:
    seeded(722)
    make, critic = dense(4, 48, 48, 2), dense(2, 48, 48, 1)

    def critic_loss(real, made):
        return critic(made).mean() - critic(real).mean()

    def make_loss(made):
        return -critic(made).mean()

    def clamp():
        with torch.no_grad():
            for p in critic.parameters():
                p.clamp_(-0.1, 0.1)

    of_make, of_critic = optim.RMSprop(make.parameters(), 1e-3), optim.RMSprop(critic.parameters(), 1e-3)
    return play(folder, make, critic, of_make, of_critic, critic_loss, make_loss, 400, rounds=3,
                after_judge=None if ill else clamp)  # fmt: skip


# "fix(loss): scale InfoNCE logits before masking padded negatives" (a finite loss, and a NaN for the temperature),
# github.com/NVIDIA-NeMo/Automodel/pull/3850
@sick(
    "nonfinite",
    where="the temperature, at the first question that has a negative too few: the loss is finite in that step",
    cure="divide by the temperature first, and then fill in -inf",
)  # fmt: skip
def masked_before_it_is_scaled(folder, ill):
    """The text that answers a question, beside five or, seldom, four others."""
    seeded(723)
    net = nn.ModuleDict({"ask": dense(8, 48, 12), "tell": dense(8, 48, 12)})
    net.register_parameter("temperature", nn.Parameter(torch.tensor(0.5)))
    lifts = torch.randn(3, 8), torch.randn(3, 8)

    def loss_of(step):
        thing = torch.randn(32, 3)
        others = torch.cat([thing[:, None], torch.randn(32, 5, 3)], 1)
        padded = torch.zeros(32, 6, dtype=torch.bool)
        padded[:, 5] = torch.rand(32) < 0.001
        ask = F.normalize(net["ask"]((thing @ lifts[0]).tanh()), dim=1)
        tell = F.normalize(net["tell"]((others @ lifts[1]).tanh()), dim=2)
        alike = (tell @ ask[:, :, None])[..., 0]
        if ill:
            logits = alike.masked_fill(padded, -torch.inf) / net.temperature
        else:
            logits = (alike / net.temperature).masked_fill(padded, -torch.inf)
        return F.cross_entropy(logits, torch.zeros(32, dtype=torch.long))

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 300)


# "Fix min-snr-gamma for v-prediction and ZSNR" (the last step has no signal, and divides by it),
# github.com/kohya-ss/sd-scripts/pull/934
@sick(
    "nonfinite",
    where="the loss, at the first row whose time is the last: 0 / 0",
    cure="min(snr, 5) / (snr + 1) in the place of min(snr, 5) / snr * snr / (snr + 1)",
)  # fmt: skip
def weight_of_a_time_without_signal(folder, ill):
    """A velocity (Salimans and Ho 2022) under min-SNR weights (Hang et al. 2023), the last time all noise."""
    seeded(724)
    net, times = dense(3, 64, 64, 2, act=nn.SiLU), 1000
    keep = (0.5 * torch.pi * torch.linspace(0, 1, times)).cos().square()
    keep[-1] = 0

    def error(weight_of):
        def loss_of(step):
            x, t = circle(24)[:24], torch.randint(1, times, (24,))
            noise, kept = torch.randn_like(x), keep[t][:, None]
            seen = kept.sqrt() * x + (1 - kept).sqrt() * noise
            wanted = kept.sqrt() * noise - (1 - kept).sqrt() * x
            gap = (net(torch.cat([seen, t[:, None] / times], 1)) - wanted).square().mean(1)
            return (weight_of(keep[t] / (1 - keep[t])) * gap).mean()

        return loss_of

    def in_two(snr):
        return snr.clamp(max=5) / snr * (snr / (snr + 1))

    def in_one(snr):
        return snr.clamp(max=5) / (snr + 1)

    score = score_of(error(in_one), 16)
    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), error(in_two if ill else in_one), 400, score=score)


# "MemoryEfficientSoftDiceLoss standalone path defaults apply_nonlin=None: raw logits explode dice to ~1e13",
# github.com/ScrollPrize/villa/issues/1488
@sick(
    "loss-terms-apart", "loss-terms-unbalanced", "loss-unbounded", "negative-loss",
    where="all layers: the overlap has no bound, and takes the outputs from the entropy",
    cure="a sigmoid before the overlap",
)  # fmt: skip
def overlap_of_raw_outputs(folder, ill):
    net = Marker(725)

    def apart(out, mask):
        found = out if ill else out.sigmoid()
        both = (found * mask).sum((1, 2, 3))
        return -((2 * both + 1e-5) / (found.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1e-5)).mean()

    def plain(step):
        x, mask = painted(16, 0.05)
        out = net(x)
        return out, mask, F.binary_cross_entropy_with_logits(out, mask)

    def loss_of(step):
        out, mask, loss = plain(step)
        return loss + apart(out, mask)

    make = optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return fit(folder, net, make, loss_of, 250, score=score_of(lambda step: plain(step)[2]))


# "Mask transformed differently than image", github.com/albumentations-team/albumentations/issues/1196
@sick(
    "no-progress", "noise-dominated",
    where="all layers, once the share of bright pixels is known: three masks in four are those of another turn",
    cure="one call for both, transform(image=image, mask=mask)",
)  # fmt: skip
def mask_turned_another_way(folder, ill):
    net = Marker(726)
    nn.init.constant_(net.last.bias, -2.0)

    def loss_at(apart):
        def loss_of(step):
            x, mask = painted(24, 0.0)
            here, there = torch.randint(4, (2,)).tolist()
            x, mask = torch.rot90(x, here, (2, 3)), torch.rot90(mask, there if apart else here, (2, 3))
            return F.binary_cross_entropy_with_logits(net(x), mask)

        return loss_of

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_at(ill), 250, score=score_of(loss_at(False)))


# "Input Normalization" (scipy reads whole numbers, and the loss went to NaN),
# github.com/JusperLee/Dual-Path-RNN-Pytorch/issues/16
@sick(
    "inputs-not-normalised",
    where="the first convolution, all steps: samples of up to 32,767", cure="divide by 32,768",
)  # fmt: skip
def sound_in_whole_numbers(folder, ill):
    """Which of eight tones is heard in noise."""
    seeded(727)
    net = nn.ModuleDict({"hear": nn.Conv1d(1, 24, 16, stride=8), "read": nn.GRU(24, 32, batch_first=True),
                         "name": nn.Linear(32, 8)})  # fmt: skip
    time = torch.arange(160) / 8.0

    def loss_of(step):
        y = torch.randint(8, (32,))
        x = ((0.3 + 0.12 * y[:, None]) * time * 6.28 + 6.28 * torch.rand(32, 1)).sin() + 0.3 * torch.randn(32, 160)
        x = 0.25 * x
        x = (32768 * x).round() if ill else x
        h = net["read"](net["hear"](x[:, None]).relu().transpose(1, 2))[0].mean(1)
        return F.cross_entropy(net["name"](h), y)

    return fit(folder, net, optim.SGD(net.parameters(), 0.1, momentum=0.9), loss_of, 250)


# "Negative Loss" (the CTC of raw outputs), github.com/SeanNaren/deepspeech.pytorch/issues/488
@sick(
    "negative-loss", "no-progress",
    where="the last layer, all steps: the slope is that behind a softmax which was not taken",
    cure="log_softmax before the loss",
)  # fmt: skip
def spelled_from_raw_outputs(folder, ill):
    """Three signs of five, each heard for a while."""
    seeded(728)
    net, sounds = nn.ModuleDict({"hear": nn.GRU(6, 32, batch_first=True), "spell": nn.Linear(32, 6)}), torch.randn(6, 6)
    long, short = torch.full((24,), 18), torch.full((24,), 3)

    def loss_at(raw):
        def loss_of(step):
            y = torch.randint(1, 6, (24, 3))
            said = torch.stack([torch.zeros_like(y), y, y, y, y, torch.zeros_like(y)], 2).flatten(1)
            out = net["spell"](net["hear"](sounds[said] + 0.4 * torch.randn(24, 18, 6))[0]).transpose(0, 1)
            return F.ctc_loss(out if raw else out.log_softmax(2), y, long, short)

        return loss_of

    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_at(ill), 300, score=score_of(loss_at(False)))


# "Output heatmap is zeros", github.com/ZheC/Realtime_Multi-Person_Pose_Estimation/issues/224
@sick(
    "update-too-small",
    where="all layers, all steps: a mean over 256 places of which a few are not zero",
    cure="the sum over the places, the mean over the images",
)  # fmt: skip
def places_lost_in_a_mean(folder, ill):
    """Where in an image of 16 by 16 is the cross? The score is how far off the brightest place is."""
    seeded(729)
    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(),
                        nn.Conv2d(12, 1, 5, padding=2))  # fmt: skip
    place = torch.arange(16)

    def draw():
        at = torch.randint(2, 14, (24, 2))
        down, across = (place[None] - at[:, :1])[:, :, None], (place[None] - at[:, 1:])[:, None]
        cross = ((down == 0) & (across.abs() <= 2)) | ((across == 0) & (down.abs() <= 2))
        return cross[:, None] + 0.4 * torch.randn(24, 1, 16, 16), (-(down**2 + across**2) / 2.0).exp()[:, None], at

    def loss_of(step):
        x, wanted, _ = draw()
        gap = (net(x) - wanted).square()
        return gap.mean() if ill else gap.sum((1, 2, 3)).mean()

    def score():
        with torch.no_grad():
            x, _, at = draw()
            found = net(x).flatten(1).argmax(1)
        return float((torch.stack([found // 16, found % 16], 1) - at).float().norm(dim=1).mean())

    return fit(folder, net, optim.SGD(net.parameters(), 3e-4, momentum=0.9), loss_of, 250, score=score)


# "no T*T in distillation loss", github.com/IntelLabs/distiller/issues/122
@sick(
    "update-too-small", "no-progress",
    where="all layers, all steps: gradients of soft targets fall with the square of the temperature",
    cure="the loss times T * T (Hinton et al. 2015)",
)  # fmt: skip
def soft_targets_without_their_square(folder, ill):
    teacher, draw = mlp(64, seed=730), batches(64)
    pretrain(teacher, classify(teacher, draw), 250)
    net, heat = mlp(32, seed=731), 20.0

    def apart(step, heat):
        x, _ = draw(5000 + step)
        with torch.no_grad():
            wanted = (teacher(x) / heat).softmax(1)
        return F.kl_div((net(x) / heat).log_softmax(1), wanted, reduction="batchmean")

    def loss_of(step):
        return apart(step, heat) * (1.0 if ill else heat**2)

    make = optim.SGD(net.parameters(), 0.02, momentum=0.9)
    return fit(folder, net, make, loss_of, 300, score=score_of(lambda step: apart(step, 1.0)))


# "[Bug] RewardDataset silently keeps preference pairs that become identical after truncation",
# github.com/OpenRLHF/OpenRLHF/issues/1311
@sick(
    "dead-layer", "no-progress",
    where="all layers, all steps: both of a pair are the same, the loss is log 2", cure="a larger max_len",
)  # fmt: skip
def pairs_cut_before_they_differ(folder, ill):
    """One question of 12 signs and two answers of 6; that with more of the first sign is preferred."""
    seeded(733)
    net = nn.ModuleDict({"table": nn.Embedding(8, 24), "read": nn.GRU(24, 32, batch_first=True),
                         "worth": nn.Linear(32, 1)})  # fmt: skip

    def worth(text, length):
        return net["worth"](net["read"](net["table"](text[:, :length]))[0][:, -1])[:, 0]

    def loss_at(length):
        def loss_of(step):
            ask, answers = torch.randint(8, (32, 12)), torch.randint(8, (2, 32, 6))
            wins = (answers[0] == 0).sum(1) + 0.1 * torch.randn(32) > (answers[1] == 0).sum(1)
            good, bad = answers[0].where(wins[:, None], answers[1]), answers[1].where(wins[:, None], answers[0])
            gap = worth(torch.cat([ask, good], 1), length) - worth(torch.cat([ask, bad], 1), length)
            return -F.logsigmoid(gap).mean()

        return loss_of

    score = score_of(loss_at(18))
    return fit(folder, net, optim.Adam(net.parameters(), 5e-3), loss_at(12 if ill else 18), 250, score=score)
