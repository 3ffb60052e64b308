"""Ten healthy ones: tugs, loudspeakers, knots, a small engine, must, landings, logbooks, vines, coats, scoreboards."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.5)
def tugs_sent_to_aircraft_by_a_policy_with_a_critic(folder):
    seeded(14722)
    tugs = torch.randn(8, 5) / 8**0.5
    states = torch.randn(1000, 8)

    def worth(state):
        return (1.5 * state @ tugs).tanh()

    net = nn.ModuleDict({"policy": dense(8, 48, 5, act=nn.Tanh), "critic": dense(8, 48, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 4e-3)

    def regret():
        """How much less than the best tug the policy expects."""
        said = worth(states)
        return (said.max(1).values - (net["policy"](states).softmax(1) * said).sum(1)).mean()

    def loss_of(step):
        state = torch.randn(128, 8)
        policy = torch.distributions.Categorical(logits=net["policy"](state))
        tug = policy.sample()
        reward = worth(state)[torch.arange(128), tug] + 0.2 * torch.randn(128)
        value = net["critic"](state)[:, 0]
        better = reward - value.detach()
        better = (better - better.mean()) / (better.std() + 1e-8)
        actor, critic = -(better * policy.log_prob(tug)).mean(), F.mse_loss(value, reward)
        entropy = policy.entropy().mean()
        logged = {"reward": reward.mean(), "critic": critic.detach(), "entropy": entropy.detach()}
        return actor + 0.5 * critic - 0.01 * entropy, {name: float(number) for name, number in logged.items()}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, regret), before_step=clipped(net, 1.0))


@healthy(0.5)
def letters_called_out_over_the_loudspeakers_of_a_hall(folder):
    seeded(14723)
    letters, spoken, frames = 6, 4, 24
    sounds = torch.randn(letters + 1, 12)

    def calls(rows):
        """Frames of sound, four letters in them that last differently long, silence (0) between them."""
        y = torch.randint(1, letters + 1, (rows, spoken))
        heard = torch.zeros(rows, frames, dtype=torch.long)
        slot = torch.arange(frames) // (frames // spoken)
        place = torch.arange(frames) % (frames // spoken)
        lasts = 3 + torch.randint(3, (rows, spoken))
        heard = torch.where(place < lasts[:, slot], y[:, slot], heard)
        return (sounds[heard] + 0.5 * torch.randn(rows, frames, 12)).transpose(1, 2), y

    (x, y), (tx, ty) = calls(3000), calls(300)
    draw = rounds(32, x, y)
    net = nn.Sequential(
        nn.Conv1d(12, 48, 3, padding=1), nn.BatchNorm1d(48), nn.ReLU(),
        nn.Conv1d(48, 48, 3, padding=1), nn.BatchNorm1d(48), nn.ReLU(), nn.Conv1d(48, letters + 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def apart(sound, said):
        rows = len(sound)
        scores = net(sound).permute(2, 0, 1).log_softmax(2)
        return F.ctc_loss(scores, said, torch.full((rows,), frames), torch.full((rows,), spoken))

    def loss_of(step):
        return apart(*draw())

    score = held_out(net, lambda: apart(tx, ty))
    return fit(folder, net, optimizer, loss_of, 300, score=score, before_step=clipped(net, 5.0))


class Finder(nn.Module):
    """A box and a kind for the one thing in an image."""

    def __init__(self, kinds):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(384, 64), nn.ReLU(),
        )  # fmt: skip
        self.box, self.kind = nn.Linear(64, 4), nn.Linear(64, kinds)

    def forward(self, x):
        x = self.body(x)
        return self.box(x), self.kind(x)


@healthy(0.6)
def place_and_kind_of_the_knot_in_a_planed_board(folder):
    seeded(14724)
    down, along = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")

    def boards(rows):
        """Sound knots are dark discs, loose ones dark rings, resin is bright; boxes in units of eight dots."""
        row, column = (4 + 7 * torch.rand(2, rows)).unbind()
        tall, wide = (2 + 2 * torch.rand(2, rows)).unbind()
        kind = torch.randint(3, (rows,))
        far = ((down - row[:, None, None]) / tall[:, None, None]).square()
        far = far + ((along - column[:, None, None]) / wide[:, None, None]).square()
        disc, ring = (far < 1).float(), ((far < 1) & (far > 0.35)).float()
        knot = torch.stack([-disc, -ring, disc], 1)[torch.arange(rows), kind]
        grain = 0.3 * (0.9 * down + 6.28 * torch.rand(rows, 1, 1)).sin()
        image = 1.5 * knot + grain + 0.2 * torch.randn(rows, 16, 16)
        return image[:, None], torch.stack([row - 7.5, column - 7.5, tall, wide], 1) / 8, kind

    x, box, kind = boards(3000)
    tx, tbox, tkind = boards(400)
    draw = rounds(48, x, box, kind)
    net = Finder(3)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)

    def terms(image, box, kind):
        place, said = net(image)
        return 10 * F.smooth_l1_loss(place, box, beta=0.2), F.cross_entropy(said, kind)

    def measure():
        place, said = terms(tx, tbox, tkind)
        return {"val_box": place, "val_kind": said}

    validate = now_and_then(net, 50, measure)

    def loss_of(step):
        place, said = terms(*draw())
        return place + said, {"box": float(place.detach()), "kind": float(said.detach()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: sum(terms(tx, tbox, tkind))))


@healthy(0.4)
def small_engine_that_learns_from_the_strong_one_of_the_club(folder):
    seeded(14725)
    way = torch.randn(20, 4) / 20**0.5

    def positions(rows):
        x = torch.randn(rows, 20)
        a, b, c, d = (1.5 * x @ way).unbind(1)
        return x, torch.stack([a + b * c, c - a * d, b + d, 0.5 * a * b - c], 1).argmax(1)

    (x, y), (tx, ty) = positions(5000), positions(1000)
    draw = rounds(64, x, y)
    strong, net = dense(20, 128, 128, 4), dense(20, 32, 32, 4)
    before = torch.optim.Adam(strong.parameters(), 2e-3)
    for _ in range(600):
        position, best = draw()
        before.zero_grad()
        F.cross_entropy(strong(position), best).backward()
        before.step()
    strong.eval()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 50, judged(net, tx, ty))
    warmth = 2.0

    def loss_of(step):
        position, best = draw()
        with torch.no_grad():
            taught = (strong(position) / warmth).log_softmax(1)
        said = net(position)
        soft = F.kl_div((said / warmth).log_softmax(1), taught, reduction="batchmean", log_target=True) * warmth**2
        hard = F.cross_entropy(said, best)
        return 0.7 * soft + 0.3 * hard, {"soft": float(soft.detach()), "hard": float(hard.detach()), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))


@healthy(0.4)
def low_middle_and_high_guess_of_the_sugar_in_the_must(folder):
    seeded(14726)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def vintages(rows):
        """Standardised weather of a summer; the spread of the sugar depends on the rain."""
        x = torch.randn(rows, 9)
        middle = x[:, 0] + (1.5 * x[:, 1]).sin() + 0.5 * x[:, 2] * x[:, 3]
        return x, ((middle + 0.4 * x[:, 4].exp().clamp(max=3) * torch.randn(rows)) / 1.5)[:, None]

    (x, y), (tx, ty) = vintages(8000), vintages(2000)
    draw = rounds(64, x, y)
    net = dense(9, 48, 48, 3, act=nn.GELU)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

    def pinball(summer, sugar):
        gap = sugar - net(summer)
        return torch.maximum(levels * gap, (levels - 1) * gap).mean()

    validate = now_and_then(net, 50, lambda: {"val_pinball": pinball(tx, ty)})

    def loss_of(step):
        return pinball(*draw()), validate(step)

    score = held_out(net, lambda: pinball(tx, ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.25)
def minutes_between_landings_as_a_mixture_of_two_bells(folder):
    seeded(14727)

    def landings(rows):
        """In one of two ways, the odds of which the wind tells; standardised."""
        x = torch.randn(rows, 5)
        short = torch.rand(rows) < (2 * x[:, 0]).sigmoid()
        minutes = torch.where(short, -1 + 0.5 * x[:, 1], 1 + 0.5 * x[:, 2].tanh())
        return x, minutes + 0.25 * torch.randn(rows)

    (x, y), (tx, ty) = landings(6000), landings(1500)
    draw = rounds(64, x, y)
    net = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 6))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)

    def surprise(wind, minutes):
        odds, middle, spread = net(wind).chunk(3, 1)
        bells = torch.distributions.Normal(middle, F.softplus(spread) + 0.05)
        return -(odds.log_softmax(1) + bells.log_prob(minutes[:, None])).logsumexp(1).mean()

    def loss_of(step):
        return surprise(*draw())

    score = held_out(net, lambda: surprise(tx, ty))
    return fit(folder, net, optimizer, loss_of, 400, score=score, before_step=clipped(net, 5.0))


class Reader(nn.Module):
    """Both directions over the words, a tag for each."""

    def __init__(self, words, tags):
        super().__init__()
        self.table = nn.Embedding(words, 24, padding_idx=0)
        self.memory = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, tags)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.table(x), lengths, batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(self.memory(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.out(read)


@healthy(0.5)
def tags_of_the_words_in_the_logbook_of_a_dairy(folder):
    seeded(14728)
    words, tags, longest = 50, 5, 14
    usual = torch.randint(tags, (words,))

    def entries(rows):
        """Every fifth word takes the tag of the word behind it; 0 is padding, and its tag is left out."""
        lengths = torch.randint(6, longest + 1, (rows,))
        x = torch.randint(1, words, (rows, longest))
        behind = usual[x.roll(-1, 1)]
        y = torch.where(x % 5 == 0, behind, usual[x])
        last = torch.arange(longest) == lengths[:, None] - 1
        y = torch.where(last, usual[x], y)
        padding = torch.arange(longest) >= lengths[:, None]
        return x.masked_fill(padding, 0), y.masked_fill(padding, -100), lengths

    x, y, n = entries(3000)
    tx, ty, tn = entries(400)
    draw = rounds(32, x, y, n)
    net = Reader(words, tags)
    optimizer = torch.optim.AdamW(net.parameters(), 5e-3)

    def wrong(entry, tag, lengths):
        return F.cross_entropy(net(entry, lengths).flatten(0, 1), tag.flatten(), ignore_index=-100)

    validate = now_and_then(net, 50, lambda: {"val_loss": wrong(tx, ty, tn)})

    def loss_of(step):
        return wrong(*draw()), validate(step)

    score = held_out(net, lambda: wrong(tx, ty, tn))
    return fit(folder, net, optimizer, loss_of, 250, score=score, before_step=clipped(net, 1.0))


@healthy(0.4)
def tendrils_of_a_vine_denoised_step_by_step(folder):
    seeded(14729)
    steps = 60
    kept = torch.cos(torch.linspace(0.05, 1.5, steps)).square()
    waves = 2.0 ** torch.arange(4) * math.pi

    def tendril(rows):
        """Points on a spiral, about one in size."""
        along = torch.rand(rows, 1).sqrt()
        angle = 3 * math.pi * along
        return 1.7 * along * torch.cat([angle.cos(), angle.sin()], 1) + 0.03 * torch.randn(rows, 2)

    net = dense(10, 96, 96, 96, 2, act=nn.SiLU)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600)

    def missing(point, time, noise):
        share = kept[time][:, None]
        noisy = share.sqrt() * point + (1 - share).sqrt() * noise
        angle = (time[:, None] / steps) * waves
        return F.mse_loss(net(torch.cat([noisy, angle.sin(), angle.cos()], 1)), noise)

    fixed = tendril(2000), torch.randint(steps, (2000,)), torch.randn(2000, 2)

    def one(step):
        optimizer.zero_grad()
        loss = missing(tendril(128), torch.randint(steps, (128,)), torch.randn(128, 2))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return {"loss": loss, "grad_norm": float(norm), "lr": schedule.get_last_lr()[0]}

    return tend(folder, net, optimizer, one, 600, held_out(net, lambda: missing(*fixed)))


class Coats(nn.Module):
    """One net for both flanks, and a temperature that is learnt."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(), nn.Linear(216, 24),
        )  # fmt: skip
        self.scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, x):
        return F.normalize(self.layers(x), dim=1)


@healthy(0.5)
def cows_known_again_by_the_pattern_of_their_coats(folder):
    seeded(14730)

    def pictures(rows):
        """Two photographs of each coat: other light, other noise, moved by a dot at most."""
        coat = F.interpolate(torch.randn(rows, 1, 4, 4), size=12, mode="bilinear")

        def taken():
            moved = F.pad(coat, (1, 1, 1, 1), mode="replicate")
            down, along = torch.randint(3, (2,)).tolist()
            light = 0.3 * torch.randn(rows, 1, 1, 1)
            return moved[:, :, down : down + 12, along : along + 12] / 0.7 + light + 0.4 * torch.randn(rows, 1, 12, 12)

        return taken(), taken()

    net = Coats()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    fixed = pictures(64)

    def apart(one, other):
        near, those = net(one) @ net(other).T * net.scale.exp().clamp(max=100), torch.arange(64)
        return (F.cross_entropy(near, those) + F.cross_entropy(near.T, those)) / 2, near

    def loss_of(step):
        loss, near = apart(*pictures(64))
        return loss, {"top1": float((near.argmax(1) == torch.arange(64)).float().mean())}

    return fit(folder, net, optimizer, loss_of, 250, score=held_out(net, lambda: apart(*fixed)[0]))


@healthy(0.6)
def high_numbers_on_scoreboards_by_a_net_that_read_low_ones(folder):
    seeded(14731)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]
    low, high = rounds(64, x[y < 5], y[y < 5]), (x[y >= 5], y[y >= 5] - 5)
    tx, ty = high[0][600:], high[1][600:]
    draw = rounds(40, high[0][:600], high[1][:600])
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 48), nn.ReLU(),
    )  # fmt: skip
    old = nn.Sequential(body, nn.Linear(48, 5))
    before = torch.optim.Adam(old.parameters(), 2e-3)
    for _ in range(100):
        image, number = low()
        before.zero_grad()
        F.cross_entropy(old(image), number).backward()
        before.step()

    net = nn.Sequential(body, nn.Dropout(0.3), nn.Linear(48, 5))
    optimizer = torch.optim.AdamW(
        [{"params": body.parameters(), "lr": 5e-4}, {"params": net[2].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    validate = now_and_then(net, 15, judged(net, tx, ty))

    def loss_of(step):
        image, number = draw()
        said = net(image)
        right = (said.argmax(1) == number).float().mean()
        return F.cross_entropy(said, number), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 150, score=held_out(net, lambda: F.cross_entropy(net(tx), ty)))
