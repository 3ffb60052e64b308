"""Learning by doing, a long memory, and a reader that is tuned for another task."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, healthy, seeded
from unseen.tasks import clipped, held_out, rounds, tend


class Poles:
    """Many poles on carts, each begun anew when it falls or after 200 moves."""

    def __init__(self, many):
        self.state, self.age = torch.zeros(many, 4), torch.zeros(many)
        self.begin(torch.ones(many, dtype=torch.bool))

    def begin(self, which):
        self.state[which] = 0.1 * torch.rand(int(which.sum()), 4) - 0.05
        self.age[which] = 0

    def move(self, right):
        x, v, angle, turn = self.state.T
        pushed = (20.0 * right - 10 + 0.05 * turn.square() * angle.sin()) / 1.1
        faster = (9.8 * angle.sin() - angle.cos() * pushed) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        speeding = pushed - 0.05 * faster * angle.cos() / 1.1
        self.state = torch.stack([x + 0.02 * v, v + 0.02 * speeding, angle + 0.02 * turn, turn + 0.02 * faster], 1)
        self.age += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21)
        return fallen, fallen | (self.age >= 200)


class Balancer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.policy, self.value = dense(4, width, width, 2, act=nn.Tanh), dense(4, width, width, 1, act=nn.Tanh)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5)
                nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.policy[-1].weight, 0.01)
        nn.init.orthogonal_(self.value[-1].weight, 1.0)

    def forward(self, state):
        return torch.distributions.Categorical(logits=self.policy(state)), self.value(state)[:, 0]


@healthy()
def broom_held_upright_on_a_trolley(folder):
    seeded(2874)
    net, many, moves, batches, epochs = Balancer(), 16, 64, 4, 4
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-5)
    poles, kept, lives = Poles(many), {}, [20.0]

    @torch.no_grad()
    def collect():
        rows = []
        for _ in range(moves):
            state = poles.state
            choice, value = net(state)
            action = choice.sample()
            fallen, over = poles.move(action.float())
            after = net(poles.state)[1] * ~fallen
            rows.append((state, action, choice.log_prob(action), value, 1 + 0.99 * after - value, over))
            lives.extend(poles.age[over].tolist())
            poles.begin(over)
        state, action, log, value, surprise, over = (torch.stack(column) for column in zip(*rows, strict=True))
        gain, later = torch.zeros_like(surprise), torch.zeros(many)
        for i in reversed(range(moves)):
            later = surprise[i] + 0.99 * 0.95 * later * ~over[i]
            gain[i] = later
        return [part.flatten(0, 1) for part in (state, action, log, gain, gain + value)]

    def one(step):
        if step % (batches * epochs) == 0:
            kept["rows"] = collect()
        if step % batches == 0:
            kept["order"] = torch.randperm(many * moves).chunk(batches)
        state, action, log, gain, reward = (part[kept["order"][step % batches]] for part in kept["rows"])
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        choice, value = net(state)
        ratio = (choice.log_prob(action) - log).exp()
        policy = -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        worth, entropy = (value - reward).square().mean(), choice.entropy().mean()
        loss = policy + 0.5 * worth - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        length = sum(lives[-30:]) / len(lives[-30:])
        return {"loss": loss, "policy": policy, "value": worth, "entropy": entropy, "episode": length}

    @torch.no_grad()
    def score():
        trial, up, total = Poles(64), torch.ones(64, dtype=torch.bool), torch.zeros(64)
        for _ in range(200):
            fallen, _ = trial.move(net(trial.state)[0].sample().float())
            up &= ~fallen
            total += up
            trial.begin(fallen)
        return -float(total.mean())

    return tend(folder, net, optimizer, one, 480, score)


class Yard:
    """A cart in a yard of 6 by 6 with some posts: it has to come to the gate."""

    posts = torch.tensor([[1, 1], [1, 2], [3, 4], [4, 1], [4, 4]])
    ways = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])

    def __init__(self):
        self.blocked = torch.zeros(6, 6, dtype=torch.bool)
        self.blocked[self.posts[:, 0], self.posts[:, 1]] = True
        self.free = torch.nonzero(~self.blocked)

    def place(self, rows):
        return torch.cat([self.free[torch.randint(len(self.free), (rows,))] for _ in range(2)], 1)

    def see(self, state):
        return F.one_hot(state, 6).flatten(1).float()

    def move(self, state, action):
        to = (state[:, :2] + self.ways[action]).clamp(0, 5)
        to = torch.where(self.blocked[to[:, 0], to[:, 1], None], state[:, :2], to)
        there = (to == state[:, 2:]).all(1)
        return torch.cat([to, state[:, 2:]], 1), there


@healthy()
def handcart_to_the_right_gate(folder):
    seeded(2875)
    yard, many = Yard(), 8
    net = dense(24, 96, 96, 4)
    goal = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    now = {"state": yard.place(many), "age": torch.zeros(many)}
    memory = []

    @torch.no_grad()
    def act(chance):
        state = now["state"]
        action = net(yard.see(state)).argmax(1)
        action = torch.where(torch.rand(many) < chance, torch.randint(4, (many,)), action)
        after, there = yard.move(state, action)
        memory.extend(zip(state, action, after, there, strict=True))
        del memory[:-8000]
        now["age"] += 1
        over = there | (now["age"] >= 40)
        now["state"] = torch.where(over[:, None], yard.place(many), after)
        now["age"][over] = 0

    for _ in range(60):
        act(1.0)

    def one(step):
        chance = max(0.1, 1 - step / 800)
        act(chance)
        picked = [memory[i] for i in torch.randint(len(memory), (128,)).tolist()]
        state, action, after, there = (torch.stack(column) for column in zip(*picked, strict=True))
        with torch.no_grad():
            best = net(yard.see(after)).argmax(1, keepdim=True)
            later = goal(yard.see(after)).gather(1, best)[:, 0]
            wanted = there.float() + 0.95 * later * ~there
        found = net(yard.see(state)).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(found, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        if step % 50 == 49:
            goal.load_state_dict(net.state_dict())
        return {"loss": loss, "q": float(found.detach().mean()), "epsilon": chance}

    @torch.no_grad()
    def score():
        state, moves, gone = yard.place(200), torch.zeros(200), torch.zeros(200, dtype=torch.bool)
        for _ in range(30):
            moves += ~gone
            state, there = yard.move(state, net(yard.see(state)).argmax(1))
            gone |= there
        return float(moves.mean())

    return tend(folder, net, optimizer, one, 1500, score)


class Ledger(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.memory, self.head = nn.GRU(2, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.memory(x)[0][:, -1])[:, 0]


@healthy()
def two_ticked_entries_of_a_ledger(folder):
    seeded(2876)

    def ledgers(rows, length=30):
        entries, ticks = torch.rand(rows, length), torch.zeros(rows, length)
        for begin in (0, length // 2):
            ticks[torch.arange(rows), begin + torch.randint(length // 2, (rows,))] = 1.0
        return torch.stack([entries, ticks], 2), (entries * ticks).sum(1)

    net = Ledger()
    fresh, fresh_sum = ledgers(500)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def loss_of(step):
        x, y = ledgers(64)
        return F.mse_loss(net(x), y)

    score = held_out(net, lambda: F.mse_loss(net(fresh), fresh_sum))
    return fit(folder, net, optimizer, loss_of, 700, score=score, before_step=clipped(net, 1.0))


class Reader(nn.Module):
    """A small BERT."""

    def __init__(self, words, length, width=32, depth=2):
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.1, "gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        nn.init.normal_(self.word.weight, std=0.1)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, x):
        return self.blocks(self.drop(self.norm(self.word(x) + self.place.weight[: x.shape[1]])))


@healthy()
def logbooks_by_the_ship_they_come_from(folder):
    seeded(2877)
    words, length, ships = 40, 20, 5
    follow = (3 * torch.randn(1, words, words) + 1.5 * torch.randn(ships, words, words)).softmax(2)

    def pages(rows):
        ship = torch.randint(ships, (rows,))
        page = [torch.randint(words, (rows,))]
        for _ in range(length - 2):
            page.append(torch.multinomial(follow[ship, page[-1]], 1)[:, 0])
        first = torch.full((rows,), words)
        return torch.stack([first, *page], 1), ship

    body = Reader(words + 2, length)
    spell = nn.Sequential(body, nn.Linear(32, words))
    before, (texts, _) = torch.optim.AdamW(spell.parameters(), lr=2e-3, weight_decay=0.01), pages(4000)
    draw = rounds(32, texts)
    for _ in range(200):
        (x,) = draw()
        hidden = (torch.rand(x.shape) < 0.15) & (x < words)
        before.zero_grad()
        F.cross_entropy(spell(x.masked_fill(hidden, words + 1))[hidden], x[hidden]).backward()
        before.step()

    class Sorter(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.drop, self.head = body, nn.Dropout(0.1), nn.Linear(32, ships)
            nn.init.normal_(self.head.weight, std=0.02)
            nn.init.zeros_(self.head.bias)

        def forward(self, x):
            return self.head(self.drop(self.body(x).mean(1)))

    net, steps = Sorter(), 240
    x, ship = pages(1500)
    fresh, fresh_ship = pages(500)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 30, (steps - s) / (steps - 30)))
    draw = rounds(32, x, ship)

    def loss_of(step):
        page, label = draw()
        return F.cross_entropy(net(page), label)

    score = held_out(net, lambda: F.cross_entropy(net(fresh), fresh_ship))
    return fit(folder, net, optimizer, loss_of, steps, score=score, schedule=schedule, before_step=clipped(net, 1.0))
