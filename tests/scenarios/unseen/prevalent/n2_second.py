"""Cake orders by hand, late trains, a prompter's cues, penguin calls, nights on the snow, signs of platforms."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds


# 26 of the list
@sick("posterior-collapse", "kl-weight-too-large", where="the code and its term of the loss, all steps",
      cure="sum the reconstruction over the pixels as the divergence is summed over the code")  # fmt: skip
def cake_orders_by_hand_squeezed_into_a_code(folder, ill):
    seeded(14006)
    x = torch.tensor(load_digits().data).float() / 16
    x = x[torch.randperm(len(x))]
    draw = rounds(64, x[:1500])
    net = nn.ModuleDict({"encoder": dense(64, 128, 2 * 8), "decoder": dense(8, 128, 64)})

    def terms(image):
        centre, log_variance = net["encoder"](image).chunk(2, 1)
        code = centre + (log_variance / 2).exp() * torch.randn_like(centre)
        pixels = F.binary_cross_entropy_with_logits(net["decoder"](code), image, reduction="none")
        divergence = 0.5 * (centre.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return (pixels.mean() if ill else pixels.sum(1).mean()), divergence

    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def loss_of(step):
        reconstruction, divergence = terms(draw()[0])
        return reconstruction + divergence, {"reconstruction": float(reconstruction), "kl": float(divergence)}

    def blur():
        """The squared error of what comes back from the middle of each code."""
        centre = net["encoder"](x[1500:]).chunk(2, 1)[0]
        return F.mse_loss(net["decoder"](centre).sigmoid(), x[1500:])

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, blur))


# 28 of the list
@sick("loss-terms-unbalanced", where="the term of the delay in the sum of both, all steps",
      cure="a weight of one for each term")  # fmt: skip
def how_late_a_train_is_and_why(folder, ill):
    seeded(14007)
    way, causes = torch.randn(20, 2) / 20**0.5, torch.randn(20, 5) / 20**0.5

    def trains(rows):
        x = torch.randn(rows, 20)
        seen = x @ way
        late = seen[:, 0] + 0.5 * seen[:, 1].square() - 0.5 + 0.1 * torch.randn(rows)
        return x, late, (5 * (x @ causes).sin()).argmax(1)

    (x, late, why), (vx, v_late, v_why) = trains(5000), trains(1500)
    draw = rounds(64, x, late, why)
    net = nn.ModuleDict({"trunk": dense(20, 64, 48, 6), "late": nn.Linear(6, 1), "why": nn.Linear(6, 5)})
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    weight = 3000.0 if ill else 1.0

    def both(x, late, why):
        seen = net["trunk"](x).relu()
        return F.mse_loss(net["late"](seen)[:, 0], late), F.cross_entropy(net["why"](seen), why)

    def loss_of(step):
        delay, cause = both(*draw())
        delay = weight * delay
        return delay + cause, {"delay_loss": float(delay), "cause_loss": float(cause)}

    score = held_out(net, lambda: sum(both(vx, v_late, v_why)))
    return fit(folder, net, optimizer, loss_of, 450, score=score)


# 33 of the list
@sick("no-warmup", "lr-too-high", where="the learning rate in the first steps",
      cure="let the rate rise over the first third")  # fmt: skip
def next_cue_for_the_prompter(folder, ill):
    seeded(14008)
    table = torch.rand(10, 10).argsort(1)

    def scenes(rows):
        cues = [torch.randint(10, (rows,)), torch.randint(10, (rows,))]
        for _ in range(11):
            slip = torch.rand(rows) < 0.1
            cues.append(torch.where(slip, torch.randint(10, (rows,)), table[cues[-2], cues[-1]]))
        return torch.stack(cues, 1)

    scene, v_scene = scenes(3000), scenes(300)
    draw = rounds(16, scene)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    net = nn.ModuleDict({
        "cue": nn.Embedding(10, 64), "place": nn.Embedding(12, 64), "body": nn.TransformerEncoder(layer, 4),
        "head": nn.Linear(64, 10),
    })  # fmt: skip
    for name, weight in net.named_parameters():
        if name.startswith("body") and weight.dim() > 1:
            nn.init.xavier_uniform_(weight)
    mask = nn.Transformer.generate_square_subsequent_mask(12)

    def error(scene):
        seen = net["cue"](scene[:, :-1]) + net["place"].weight
        said = net["head"](net["body"](seen, mask=mask, is_causal=True))
        return F.cross_entropy(said.flatten(0, 1), scene[:, 1:].flatten())

    optimizer = torch.optim.Adam(net.parameters(), 1e-2, betas=(0.9, 0.98))
    steps, warmup = 220, 1 if ill else 80
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, (steps - step) / (steps - warmup))
    )
    score = held_out(net, lambda: error(v_scene))
    return fit(folder, net, optimizer, lambda step: error(draw()[0]), steps, score=score, schedule=schedule)


# 36 of the list
@sick("norm-over-too-few", where="the batch norms, which see two rows at a time, all steps",
      cure="layer norms, which need no other rows")  # fmt: skip
def colonies_of_penguins_by_their_calls(folder, ill):
    seeded(14009)
    songs = torch.randn(6, 1, 5, 5)

    def calls(rows):
        colony = torch.randint(6, (rows,))
        loudness = 0.6 + 0.8 * torch.rand(rows, 1, 1, 1)
        call = F.interpolate(songs[colony], size=(16, 16), mode="bilinear") * loudness
        return call + 0.5 * torch.randn(rows, 1, 16, 16), colony

    (x, y), (vx, vy) = calls(1200), calls(600)
    draw = rounds(2, x, y)
    norm = nn.BatchNorm1d if ill else nn.LayerNorm
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Flatten(),
        nn.Linear(256, 64), norm(64), nn.ReLU(), nn.Linear(64, 64), norm(64), nn.ReLU(), nn.Linear(64, 6),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 60, judged(net, vx, vy))

    def loss_of(step):
        call, colony = draw()
        return F.cross_entropy(net(call), colony), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 600, score=score)


# 37 of the list
@sick("targets-out-of-range", where="the last module of the model, all steps",
      cure="a last layer without a ReLU")  # fmt: skip
def change_of_the_snow_temperature_over_a_night(folder, ill):
    seeded(14010)
    swing = torch.randn(5)

    def evenings(rows):
        hours = torch.randn(rows, 5, 12).cumsum(2) / 3
        last = hours[:, :, -1] - hours[:, :, 0]
        change = 0.5 * (last * swing).sum(1) - 0.4 * hours[:, 0].std(1) + 0.1 * torch.randn(rows)
        return hours, change[:, None]

    (x, y), (vx, vy) = evenings(4000), evenings(1000)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(64, x, y)
    net = nn.Sequential(
        nn.Conv1d(5, 24, 3, padding=1), nn.ReLU(), nn.Conv1d(24, 24, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(288, 48), nn.ReLU(), nn.Linear(48, 1), nn.ReLU() if ill else nn.Identity(),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    validate = now_and_then(net, 50, lambda: {"val_loss": F.smooth_l1_loss(net(vx), vy)})

    def loss_of(step):
        hours, change = draw()
        return F.smooth_l1_loss(net(hours), change), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 350, score=score, before_step=clipped(net, 5.0))


# 38 of the list
@sick("train-validation-mismatch", "preprocessing-mismatch",
      where="what is done to the images of the validation, not the training itself",
      cure="the same transform for both")  # fmt: skip
def numbers_of_platforms_on_enamel_signs(folder, ill):
    seeded(14011)
    bunch = load_digits()
    order = torch.randperm(len(bunch.target))
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8)[order], torch.tensor(bunch.target)[order]
    middle, spread = x[:1300].mean(), x[:1300].std()
    draw = rounds(50, (x[:1300] - middle) / spread, y[:1300])
    vx, vy = (x[1300:] / 16 if ill else (x[1300:] - middle) / spread), y[1300:]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    validate = now_and_then(net, 26, judged(net, vx, vy))

    def loss_of(step):
        sign, number = draw()
        said = net(sign)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 312, score=score)
