"""A metro and a concert hall, ten healthy ones: tickets, crowds, wheels, doors, routes, tunes, seats, encores."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, judged, now_and_then, rounds, tend


@healthy(0.6)
def coach_numbers_read_by_a_small_residual_net(folder):
    seeded(14512)
    bunch = load_digits()
    x, y = torch.tensor(bunch.data).float().view(-1, 1, 8, 8) / 16, torch.tensor(bunch.target)
    order = torch.randperm(len(x))
    x, y = (x[order] - 0.3) / 0.38, y[order]

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

        def forward(self, x):
            inner = self.norms[0](self.first(x)).relu()
            return (x + self.norms[1](self.second(inner))).relu()

    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16), nn.MaxPool2d(2),
        Block(16), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 184, 1e-4)
    draw = rounds(60, x[:1400], y[:1400])
    validate = now_and_then(net, 23, judged(net, x[1400:], y[1400:]))

    def loss_of(step):
        image, number = draw()
        return F.cross_entropy(net(image), number), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x[1400:]), y[1400:]))
    return fit(folder, net, optimizer, loss_of, 184, score=score, schedule=schedule)


@healthy(0.5)
def passengers_of_the_next_quarter_hour_by_a_recurrence(folder):
    seeded(14513)

    def days(rows, length=24):
        phase, pace = 6.2832 * torch.rand(rows, 1), 0.35 + 0.2 * torch.rand(rows, 1)
        time = torch.arange(length + 1).float()
        crowd = (pace * time + phase).sin() + 0.5 * (2 * pace * time + phase).cos()
        crowd = crowd + 0.1 * torch.randn(rows, length + 1)
        return crowd[:, :-1, None], crowd[:, 1:]

    class Crowd(nn.Module):
        def __init__(self):
            super().__init__()
            self.memory = nn.LSTM(1, 32, batch_first=True)
            self.next = nn.Linear(32, 1)

        def forward(self, x):
            return self.next(self.memory(x)[0])[..., 0]

    (x, y), (tx, ty) = days(2000), days(400)
    net, draw = Crowd(), rounds(50, x, y)
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    validate = now_and_then(net, 40, lambda: {"val_loss": F.mse_loss(net(tx), ty)})

    def loss_of(step):
        before, after = draw()
        return F.mse_loss(net(before), after), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 280, score=score, before_step=clipped(net, 1.0))


@healthy(0.4)
def worn_wheels_found_by_what_a_narrow_code_cannot_redraw(folder):
    seeded(14514)
    way = torch.randn(4, 32)

    def wheels(rows):
        return (torch.randn(rows, 4) @ way / 2).tanh() + 0.1 * torch.randn(rows, 32)

    x, tx = wheels(4000), wheels(1000)
    net = nn.Sequential(dense(32, 64, 4, act=nn.SiLU), dense(4, 64, 32, act=nn.SiLU))
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=1e-3)
    draw = rounds(80, x)

    def loss_of(step):
        (sound,) = draw()
        return F.mse_loss(net(sound), sound)

    return fit(folder, net, optimizer, loss_of, 400, score=held_out(net, lambda: F.mse_loss(net(tx), tx)))


@healthy(0.4)
def doors_that_will_jam_within_a_week_weighed_by_their_rarity(folder):
    seeded(14515)
    way = torch.randn(12, 3) / 12**0.5

    def doors(rows):
        x = torch.randn(rows, 12)
        seen = x @ way
        return x, (seen[:, 0] + seen[:, 1] * seen[:, 2] + 0.2 * torch.randn(rows) > 1.2).float()

    (x, y), (tx, ty) = doors(8000), doors(2000)
    net = dense(12, 64, 64, 1)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    criterion = nn.BCEWithLogitsLoss(pos_weight=(1 - y.mean()) / y.mean())
    draw = rounds(128, x, y)

    def measure():
        said = net(tx)[:, 0]
        hit, free = (said > 0)[ty == 1].float().mean(), (said <= 0)[ty == 0].float().mean()
        return {"val_loss": criterion(said, ty), "val_balanced_accuracy": (hit + free) / 2}

    validate = now_and_then(net, 60, measure)

    def loss_of(step):
        door, jams = draw()
        return criterion(net(door)[:, 0], jams), validate(step)

    return fit(folder, net, optimizer, loss_of, 420, score=held_out(net, lambda: criterion(net(tx)[:, 0], ty)))


@healthy(0.35)
def stations_that_lie_along_a_way_by_their_neighbours_on_the_map(folder):
    seeded(14516)
    stations, lines = 150, 5
    line = torch.arange(stations) % lines
    near = torch.rand(stations, stations) < torch.where(line[:, None] == line, 0.15, 0.01)
    joined = (near | near.T).float()
    joined = joined - torch.diag(joined.diag()) + torch.eye(stations)
    degree = joined.sum(1).rsqrt()
    spread = degree[:, None] * joined * degree
    x = torch.randn(lines, 16)[line] + 2.0 * torch.randn(stations, 16)
    order = torch.randperm(stations)
    known, asked = order[:75], order[75:]

    class Map(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.drop = nn.Linear(16, 32), nn.Linear(32, lines), nn.Dropout(0.4)

        def forward(self, x):
            return spread @ self.second(self.drop((spread @ self.first(x)).relu()))

    net = Map()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=1e-3)

    def measure():
        said = net(x)[asked]
        right = (said.argmax(1) == line[asked]).float().mean()
        return {"val_loss": F.cross_entropy(said, line[asked]), "val_accuracy": right}

    validate = now_and_then(net, 10, measure)

    def loss_of(step):
        return F.cross_entropy(net(x)[known], line[known]), validate(step)

    score = held_out(net, lambda: F.cross_entropy(net(x)[asked], line[asked]))
    return fit(folder, net, optimizer, loss_of, 120, score=score)


@healthy(0.4)
def the_next_note_of_a_tune_by_a_small_causal_transformer(folder):
    seeded(14517)
    notes, length, width = 16, 20, 32
    steps_of = torch.tensor([[2, 3, 11], [5, 1, 7], [4, 9, 2], [3, 6, 13]])

    def tunes(rows):
        """Each mode walks by three intervals in turn; one note in twenty is free."""
        mode, found = torch.randint(4, (rows,)), [torch.randint(notes, (rows,))]
        for place in range(length):
            walked = (found[-1] + steps_of[mode, place % 3]) % notes
            found.append(torch.where(torch.rand(rows) < 0.05, torch.randint(notes, (rows,)), walked))
        return torch.stack(found, 1)

    class Tune(nn.Module):
        def __init__(self):
            super().__init__()
            self.note, self.place = nn.Embedding(notes, width), nn.Embedding(length, width)
            layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
            self.out = nn.Linear(width, notes)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

        def forward(self, x):
            return self.out(self.layers(self.note(x) + self.place.weight, mask=self.mask))

    net, x, tx = Tune(), tunes(4000), tunes(200)
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 30, 1 - step / 320))
    draw = rounds(32, x)

    def loss_at(tune):
        return F.cross_entropy(net(tune[:, :-1]).flatten(0, 1), tune[:, 1:].flatten())

    validate = now_and_then(net, 60, lambda: {"val_loss": loss_at(tx)})

    def loss_of(step):
        return loss_at(*draw()), {"lr": schedule.get_last_lr()[0], **validate(step)}

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: loss_at(tx)), schedule=schedule,
               before_step=clipped(net, 1.0))  # fmt: skip


@healthy(0.4)
def seats_that_a_subscriber_would_like_by_two_tables_of_tastes(folder):
    seeded(14518)
    people, seats, tastes = 200, 120, 4
    of_people, of_seats = torch.randn(people, tastes), torch.randn(seats, tastes)
    lift = 0.4 * torch.randn(seats)

    def marks(rows):
        who, where = torch.randint(people, (rows,)), torch.randint(seats, (rows,))
        mark = (of_people[who] * of_seats[where]).sum(1) / 2 + lift[where] + 0.2 * torch.randn(rows)
        return who, where, mark

    class Tastes(nn.Module):
        def __init__(self):
            super().__init__()
            self.people, self.seats = nn.Embedding(people, 8), nn.Embedding(seats, 8)
            self.leniency, self.lift = nn.Embedding(people, 1), nn.Embedding(seats, 1)
            for table in (self.people, self.seats):
                nn.init.normal_(table.weight, std=0.3)
            for table in (self.leniency, self.lift):
                nn.init.zeros_(table.weight)

        def forward(self, who, where):
            return (self.people(who) * self.seats(where)).sum(1) + (self.leniency(who) + self.lift(where))[:, 0]

    (who, where, mark), asked = marks(14000), marks(2000)
    net, draw = Tastes(), rounds(256, who, where, mark)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    validate = now_and_then(net, 54, lambda: {"val_loss": F.mse_loss(net(*asked[:2]), asked[2])})

    def loss_of(step):
        who, where, mark = draw()
        return F.mse_loss(net(who, where), mark), validate(step)

    score = held_out(net, lambda: F.mse_loss(net(*asked[:2]), asked[2]))
    return fit(folder, net, optimizer, loss_of, 486, score=score)


@healthy(0.3)
def applause_told_from_rain_by_a_pupil_of_a_larger_net(folder):
    seeded(14519)
    hearts = torch.randn(5, 3, 16)

    def sounds(rows):
        y = torch.randint(5, (rows,))
        return hearts[y, torch.randint(3, (rows,))] + 0.8 * torch.randn(rows, 16), y

    (x, y), (tx, ty) = sounds(4000), sounds(1500)
    teacher, draw = dense(16, 128, 128, 5), rounds(64, x, y)
    of_teacher = torch.optim.Adam(teacher.parameters(), 2e-3)
    for _ in range(250):
        of_teacher.zero_grad()
        heard, kind = draw()
        F.cross_entropy(teacher(heard), kind).backward()
        of_teacher.step()
    teacher.eval().requires_grad_(False)
    pupil, warmth = dense(16, 32, 5), 2.0
    optimizer = torch.optim.Adam(pupil.parameters(), 5e-3)
    validate = now_and_then(pupil, 50, judged(pupil, tx, ty))

    def one(step):
        optimizer.zero_grad()
        heard, kind = draw()
        said, taught = pupil(heard), teacher(heard)
        soft = F.kl_div((said / warmth).log_softmax(1), (taught / warmth).softmax(1), reduction="batchmean") * warmth**2
        hard = F.cross_entropy(said, kind)
        loss = 0.7 * soft + 0.3 * hard
        loss.backward()
        optimizer.step()
        return {"loss": float(loss), "soft_loss": float(soft), "hard_loss": float(hard), **validate(step)}

    return tend(folder, pupil, optimizer, one, 350, held_out(pupil, lambda: F.cross_entropy(pupil(tx), ty)))


@healthy(0.3)
def echoes_taken_out_of_a_recording_by_a_small_convolution(folder):
    seeded(14520)

    def recordings(rows, length=64):
        pace, phase = 0.1 + 0.4 * torch.rand(rows, 3, 1), 6.2832 * torch.rand(rows, 3, 1)
        clean = (pace * torch.arange(length) + phase).sin().mean(1)
        late = torch.cat([torch.zeros(rows, 5), clean[:, :-5]], 1)
        return (clean + 0.7 * late + 0.3 * torch.randn(rows, length))[:, None], clean[:, None]

    (x, y), (tx, ty) = recordings(2000), recordings(300)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv1d(16, 16, 9, padding=4),
        nn.GroupNorm(4, 16), nn.GELU(), nn.Conv1d(16, 1, 9, padding=4),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)
    draw = rounds(32, x, y)
    validate = now_and_then(net, 62, lambda: {"val_loss": F.l1_loss(net(tx), ty)})

    def loss_of(step):
        heard, clean = draw()
        return F.l1_loss(net(heard), clean), validate(step)

    return fit(folder, net, optimizer, loss_of, 310, score=held_out(net, lambda: F.l1_loss(net(tx), ty)))


@healthy(0.3)
def takings_of_an_evening_as_three_quantiles(folder):
    seeded(14521)
    shares = torch.tensor([0.1, 0.5, 0.9])
    way = torch.randn(7, 3) / 7**0.5

    def evenings(rows):
        x = torch.randn(rows, 7)
        seen = x @ way
        middle = 1.5 * seen[:, 0] + seen[:, 1].square()
        return x, (middle + (0.2 + 0.3 * seen[:, 2].sigmoid()) * torch.randn(rows))[:, None]

    (x, y), (tx, ty) = evenings(5000), evenings(1500)
    mean, std = y.mean(), y.std()
    y, ty = (y - mean) / std, (ty - mean) / std
    net, draw = dense(7, 64, 64, 3, act=nn.SiLU), rounds(100, x, y)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.3)

    def pinball(said, true):
        gap = true - said
        return torch.maximum(shares * gap, (shares - 1) * gap).sum(1).mean()

    def loss_of(step):
        evening, takings = draw()
        return pinball(net(evening), takings)

    score = held_out(net, lambda: pinball(net(tx), ty))
    return fit(folder, net, optimizer, loss_of, 450, score=score, schedule=schedule)
