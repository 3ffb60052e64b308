"""Hikers, handhelds, wolves, round rolls, shunting, stage directions, callouts, ascents, new animals, announcements."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, play, rounds, tend


@healthy(0.6)
def lost_hikers_on_thermal_images(folder):
    seeded(14022)
    line = torch.linspace(-1, 1, 18)

    def warmth(place, width):
        return (-((line - place[:, :1]) / width).square()).exp()[:, None] * (
            -((line - place[:, 1:]) / width).square()
        ).exp()[:, :, None]

    def flights(rows):
        hiker, rock = 1.7 * torch.rand(rows, 2) - 0.85, 2 * torch.rand(rows, 2) - 1
        image = 1.5 * warmth(hiker, 0.15) + 0.8 * warmth(rock, 0.5) + 0.15 * torch.randn(rows, 18, 18)
        return image[:, None] - 0.2, hiker

    (x, y), (vx, vy) = flights(1500), flights(400)
    draw = rounds(25, x, y)

    class Spotter(nn.Module):
        """Where the mean of a map of chances lies: across, then down."""

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(),
                nn.Conv2d(16, 1, 1),
            )  # fmt: skip

        def forward(self, image):
            chance = self.body(image).flatten(1).softmax(1).view(-1, 18, 18)
            return torch.stack([chance.sum(1) @ line, chance.sum(2) @ line], 1)

    net = Spotter()
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def miss(image, hiker):
        return (net(image) - hiker).norm(dim=1).mean()

    validate = now_and_then(net, 40, lambda: {"val_distance": miss(vx, vy)})

    def loss_of(step):
        image, hiker = draw()
        return F.mse_loss(net(image), hiker), validate(step)

    return fit(folder, net, optimizer, loss_of, 240, score=held_out(net, lambda: miss(vx, vy)))


@healthy(0.5)
def small_model_for_the_conductors_handheld(folder):
    seeded(14023)
    way = torch.randn(16, 4) / 4

    def tickets(rows):
        x = torch.randn(rows, 16)
        seen = x @ way
        score = torch.stack([seen[:, 0], seen[:, 1], seen[:, 2] * seen[:, 3], seen[:, 0].abs() - 0.8], 1)
        return x, (score + 0.1 * torch.randn(rows, 4)).argmax(1)

    (x, y), (vx, vy) = tickets(6000), tickets(1500)
    draw = rounds(100, x, y)
    teacher, net = dense(16, 128, 128, 4), dense(16, 24, 4)
    of_teacher = torch.optim.Adam(teacher.parameters(), 2e-3)
    for _ in range(300):
        ticket, fare = draw()
        of_teacher.zero_grad()
        F.cross_entropy(teacher(ticket), fare).backward()
        of_teacher.step()
    teacher.eval()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    validate = now_and_then(net, 50, judged(net, vx, vy))
    heat = 2.0

    def loss_of(step):
        ticket, fare = draw()
        with torch.no_grad():
            taught = (teacher(ticket) / heat).log_softmax(1)
        said = net(ticket)
        soft = heat**2 * F.kl_div((said / heat).log_softmax(1), taught, reduction="batchmean", log_target=True)
        hard = F.cross_entropy(said, fare)
        return 0.7 * soft + 0.3 * hard, {"soft": float(soft), "hard": float(hard), **validate(step)}

    score = held_out(net, lambda: F.cross_entropy(net(vx), vy))
    return fit(folder, net, optimizer, loss_of, 400, score=score, schedule=schedule)


@healthy(0.4)
def tracks_of_the_wolves_out_of_noise(folder):
    seeded(14024)
    keep = torch.cos(torch.linspace(0.05, 0.97, 40) * 1.5708).square()

    def tracks(rows):
        wolf, turn = torch.randint(2, (rows,)), 3.1416 * torch.rand(rows)
        side = 1 - 2 * wolf
        place = torch.stack([turn.cos() * side + 0.5 * wolf * 2 - 0.5, turn.sin() * side - 0.25 * side], 1)
        return 1.3 * place + 0.05 * torch.randn(rows, 2), wolf

    def noised(place):
        t, noise = torch.randint(40, (len(place),)), torch.randn_like(place)
        return keep[t].sqrt()[:, None] * place + (1 - keep[t]).sqrt()[:, None] * noise, t, noise

    place, wolf = tracks(6000)
    v_place, v_wolf = tracks(1500)
    v_noisy, v_t, v_noise = noised(v_place)
    draw = rounds(128, place, wolf)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time, self.wolf, self.place = nn.Linear(8, 64), nn.Embedding(2, 64), nn.Linear(2, 64)
            self.body = nn.Sequential(nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
            self.last = nn.Linear(64, 2)

        def forward(self, noisy, t, wolf):
            angle = t[:, None] / 40 * 3.1416 * torch.tensor([0.5, 1.0, 2.0, 4.0])
            time = self.time(torch.cat([angle.sin(), angle.cos()], 1))
            return self.last(self.body(self.place(noisy) + time + self.wolf(wolf)))

    net = Denoiser()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 450, eta_min=1e-4)

    def loss_of(step):
        place, wolf = draw()
        noisy, t, noise = noised(place)
        return F.mse_loss(net(noisy, t, wolf), noise)

    score = held_out(net, lambda: F.mse_loss(net(v_noisy, v_t, v_wolf), v_noise))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule, before_step=clipped(net, 1.0))


@healthy(0.6)
def round_rolls_from_nothing_but_noise(folder):
    seeded(14025)
    make, judge = dense(4, 48, 48, 2), dense(2, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), 2e-3, betas=(0.5, 0.9))
    of_judge = torch.optim.Adam(judge.parameters(), 2e-3, betas=(0.5, 0.9))

    def judge_loss(real, made):
        return F.softplus(-judge(real)).mean() + F.softplus(judge(made)).mean()

    def make_loss(made):
        return F.softplus(-judge(made)).mean()

    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 600)


@healthy(0.6)
def wagons_shunted_to_their_track(folder):
    seeded(14026)
    states, actions, discount = 20, 4, 0.8
    onward = torch.randint(states, (states, actions))
    reward = torch.rand(states, actions)
    best = torch.zeros(states, actions)
    for _ in range(100):
        best = reward + discount * best.max(1).values[onward]
    every = F.one_hot(torch.arange(states), states).float()
    state, action = torch.randint(states, (5000,)), torch.randint(actions, (5000,))
    paid = reward[state, action] + 0.1 * torch.randn(5000)
    draw = rounds(128, state, action, paid, onward[state, action])
    net = dense(states, 64, 64, actions)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def one(step):
        if step % 15 == 0:
            target.load_state_dict(net.state_dict())
        state, action, paid, following = draw()
        with torch.no_grad():
            choice = net(every[following]).argmax(1, keepdim=True)
            wanted = paid + discount * target(every[following]).gather(1, choice)[:, 0]
        value = net(every[state]).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        return {"loss": loss, "mean_q": value.detach().mean()}

    return tend(folder, net, optimizer, one, 420, held_out(net, lambda: (net(every) - best).abs().mean()))


@healthy(0.6)
def stage_directions_marked_in_a_script(folder):
    seeded(14027)
    kind = torch.randint(4, (60,))

    def scripts(rows):
        length = torch.randint(6, 19, (rows,))
        word = torch.randint(60, (rows, 18))
        before = torch.cat([torch.zeros(rows, 1, dtype=torch.long), kind[word[:, :-1]]], 1)
        tag = torch.where(before == 3, 4, kind[word])
        beyond = torch.arange(18) >= length[:, None]
        return (word + 1).masked_fill(beyond, 0), tag.masked_fill(beyond, -100), length

    (x, y, length), (vx, vy, v_length) = scripts(2500), scripts(400)
    draw = rounds(32, x, y, length)

    class Marker(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(61, 24, padding_idx=0)
            self.memory = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
            self.drop, self.head = nn.Dropout(0.2), nn.Linear(64, 5)

        def forward(self, word, length):
            packed = pack_padded_sequence(self.word(word), length, batch_first=True, enforce_sorted=False)
            seen = pad_packed_sequence(self.memory(packed)[0], batch_first=True, total_length=word.shape[1])[0]
            return self.head(self.drop(seen))

    net = Marker()
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)

    def error(said, tag):
        return F.cross_entropy(said.flatten(0, 1), tag.flatten(), ignore_index=-100)

    def right(said, tag):
        real = tag != -100
        return (said.argmax(2) == tag)[real].float().mean()

    def measure():
        said = net(vx, v_length)
        return {"val_loss": error(said, vy), "val_accuracy": right(said, vy)}

    validate = now_and_then(net, 40, measure)

    def loss_of(step):
        word, tag, length = draw()
        said = net(word, length)
        return error(said, tag), {"accuracy": float(right(said, tag)), **validate(step)}

    score = held_out(net, lambda: error(net(vx, v_length), vy))
    return fit(folder, net, optimizer, loss_of, 200, score=score, before_step=clipped(net, 1.0))


@healthy(0.4)
def callouts_of_the_rescue_on_a_winters_day(folder):
    seeded(14028)
    way = torch.randn(7, 2) / 7**0.5

    def days(rows):
        x = torch.randn(rows, 7)
        seen = x @ way
        rate = (1.2 + 0.7 * seen[:, 0] + 0.5 * seen[:, 1].sin()).exp()
        return x, torch.poisson(rate)

    (x, y), (vx, vy) = days(4000), days(1500)
    draw = rounds(64, x, y)
    net = dense(7, 48, 48, 1, act=nn.SiLU)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3, weight_decay=1e-5)
    criterion = nn.PoissonNLLLoss(log_input=True)

    def deviance():
        said = net(vx)[:, 0]
        return 2 * (torch.xlogy(vy, vy) - vy * said - vy + said.exp()).mean()

    validate = now_and_then(net, 50, lambda: {"val_deviance": deviance()})

    def loss_of(step):
        day, callouts = draw()
        return criterion(net(day)[:, 0], callouts), validate(step)

    return fit(folder, net, optimizer, loss_of, 350, score=held_out(net, deviance))


@healthy(0.5)
def hours_of_an_ascent_and_how_sure_they_are(folder):
    seeded(14029)
    way = torch.randn(8, 2) / 8**0.5

    def ascents(rows):
        x = torch.randn(rows, 8)
        seen = x @ way
        hours = 6 + 1.5 * seen[:, 0] + seen[:, 1].abs() + 0.25 * (0.8 * x[:, 1]).exp() * torch.randn(rows)
        return x, hours[:, None]

    (x, y), (vx, vy) = ascents(5000), ascents(1500)
    middle, spread = y.mean(), y.std()
    y, vy = (y - middle) / spread, (vy - middle) / spread
    draw = rounds(64, x, y)

    class Guess(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.SiLU())
            self.middle, self.spread = nn.Linear(64, 1), nn.Linear(64, 1)

        def forward(self, x):
            seen = self.body(x)
            return self.middle(seen), F.softplus(self.spread(seen)) + 1e-3

    net = Guess()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    criterion = nn.GaussianNLLLoss()

    def error(x, y):
        middle, variance = net(x)
        return criterion(middle, y, variance)

    return fit(
        folder, net, optimizer, lambda step: error(*draw()), 400,
        score=held_out(net, lambda: error(vx, vy)), schedule=schedule, before_step=clipped(net, 5.0),
    )  # fmt: skip


@healthy(0.6)
def new_animals_with_the_eyes_of_an_old_model(folder):
    seeded(14030)
    coats = torch.randn(12, 3, 4, 4)

    def photographs(rows, first, kinds):
        animal = torch.randint(kinds, (rows,))
        coat = F.interpolate(coats[first + animal], size=(12, 12), mode="bilinear")
        return coat + 0.7 * torch.randn(rows, 3, 12, 12), animal

    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(),
    )  # fmt: skip
    old = nn.Sequential(body, nn.Linear(64, 8))
    of_old = torch.optim.Adam(old.parameters(), 1e-3)
    draw_old = rounds(50, *photographs(2000, 0, 8))
    for _ in range(160):
        image, animal = draw_old()
        of_old.zero_grad()
        F.cross_entropy(old(image), animal).backward()
        of_old.step()

    (x, y), (vx, vy) = photographs(320, 8, 4), photographs(600, 8, 4)
    draw = rounds(32, x, y)
    net = nn.Sequential(body, nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(
        [{"params": net[0].parameters(), "lr": 1e-4}, {"params": net[1].parameters(), "lr": 2e-3}], weight_decay=0.01
    )
    validate = now_and_then(net, 20, judged(net, vx, vy))

    def loss_of(step):
        image, animal = draw()
        said = net(image)
        right = (said.argmax(1) == animal).float().mean()
        return F.cross_entropy(said, animal), {"accuracy": float(right), **validate(step)}

    return fit(folder, net, optimizer, loss_of, 120, score=held_out(net, lambda: F.cross_entropy(net(vx), vy)))


@healthy(0.6)
def announcements_on_a_noisy_platform(folder):
    seeded(14031)
    sounds = torch.randn(9, 14)
    sounds[0] = 0

    def announcements(rows):
        said = torch.randint(1, 9, (rows, 5))
        frame, begin = torch.arange(36), 7 * torch.arange(5) + torch.randint(0, 3, (rows, 5))
        end = begin + torch.randint(2, 5, (rows, 5))
        now = (frame >= begin[..., None]) & (frame < end[..., None])
        spoken = (now * said[..., None]).sum(1)
        return sounds[spoken] + 0.5 * torch.randn(rows, 36, 14), said

    (x, y), (vx, vy) = announcements(2000), announcements(300)
    draw = rounds(32, x, y)

    class Listener(nn.Module):
        def __init__(self):
            super().__init__()
            self.near = nn.Conv1d(14, 32, 3, padding=1)
            self.memory = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.head = nn.Linear(64, 9)

        def forward(self, x):
            near = self.near(x.transpose(1, 2)).relu().transpose(1, 2)
            return self.head(self.memory(near)[0]).log_softmax(2)

    net = Listener()
    criterion = nn.CTCLoss(blank=0)

    def error(x, y):
        frames, words = torch.full((len(x),), 36), torch.full((len(x),), 5)
        return criterion(net(x).transpose(0, 1), y, frames, words)

    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    validate = now_and_then(net, 45, lambda: {"val_loss": error(vx, vy)})
    return fit(
        folder, net, optimizer, lambda step: (error(*draw()), validate(step)), 180,
        score=held_out(net, lambda: error(vx, vy)), before_step=clipped(net, 5.0),
    )  # fmt: skip
