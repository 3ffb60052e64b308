"""Agents, rivals, ranking and recommendations."""

import copy
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR
from unseen import dense, fit, healthy, mean, seeded
from unseen.tasks import held_out, in_turn, rounds, tend


class Grid:
    """A walk on a board of five by five to a corner, with two pits; `count` walks at once, each of 20 steps at most."""

    size, goal = 5, (4, 4)

    def __init__(self, count):
        self.count = count
        self.at, self.age = torch.zeros(count, 2, dtype=torch.long), torch.zeros(count, dtype=torch.long)
        self.renew(torch.ones(count, dtype=torch.bool))

    def renew(self, which):
        self.at[which] = torch.randint(0, 3, (int(which.sum()), 2))
        self.age[which] = 0

    def see(self):
        return F.one_hot(self.at, self.size).flatten(1).float()

    def act(self, moves):
        ways = torch.tensor([[0, 1], [1, 0], [0, -1], [-1, 0]])
        self.at = (self.at + ways[moves]).clamp(0, self.size - 1)
        self.age += 1
        won = (self.at == torch.tensor(self.goal)).all(1)
        lost = ((self.at == torch.tensor([3, 1])).all(1)) | ((self.at == torch.tensor([1, 3])).all(1))
        reward = won.float() - lost.float() - 0.02
        done = won | lost
        over = done | (self.age >= 20)
        after = self.see()
        self.renew(over)
        return reward, after, done, over


def worth(policy, count=64, steps=60):
    """Minus the reward of a step and a walk, on average."""
    grid = Grid(count)
    with torch.no_grad():
        return -mean([float(grid.act(policy(grid.see()))[0].mean()) for _ in range(steps)])


@healthy()
def a_postman_learns_the_courtyard(folder):
    seeded(9273)
    net = dense(10, 64, 64, 4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    grid, returns, room = Grid(16), deque([0.0], maxlen=200), 8000
    memory = [torch.zeros(room, 10), torch.zeros(room, dtype=torch.long), torch.zeros(room), torch.zeros(room, 10),
              torch.zeros(room)]  # fmt: skip
    kept = {"rows": 0}

    def explore(share):
        see = grid.see()
        with torch.no_grad():
            moves = net(see).argmax(1)
        moves = torch.where(torch.rand(16) < share, torch.randint(4, (16,)), moves)
        reward, after, done, _ = grid.act(moves)
        at = (kept["rows"] + torch.arange(16)) % room
        for part, new in zip(memory, (see, moves, reward, after, done.float()), strict=True):
            part[at] = new
        kept["rows"] += 16
        returns.append(float(reward.mean()))

    for _ in range(100):
        explore(1.0)

    def one(step):
        explore(max(0.1, 1 - step / 400))
        picked = torch.randint(min(room, kept["rows"]), (128,))
        see, moves, reward, after, done = (part[picked] for part in memory)
        with torch.no_grad():
            best = target(after).gather(1, net(after).argmax(1, keepdim=True))[:, 0]
            wanted = reward + 0.95 * (1 - done) * best
        value = net(see).gather(1, moves[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.lerp_(fast, 0.03)
        return {"loss": loss, "reward": mean(returns), "q_mean": value.mean()}

    return tend(folder, net, optimizer, one, 700, lambda: worth(lambda see: net(see).argmax(1)))


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = dense(10, 64, 64, act=nn.Tanh)
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)
        nn.init.orthogonal_(self.actor.weight, 0.01)

    def forward(self, x):
        h = self.body(x).tanh()
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


@healthy()
def a_kitten_crosses_the_yard(folder):
    seeded(9274)
    net, grid = ActorCritic(), Grid(32)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1.5e-3, alpha=0.99, eps=1e-5)

    def one(step):
        logs, values, entropies, rewards, going = [], [], [], [], []
        for _ in range(5):
            choice, value = net(grid.see())
            moves = choice.sample()
            reward, after, done, over = grid.act(moves)
            with torch.no_grad():
                reward = reward + 0.95 * (over & ~done).float() * net(after)[1]
            logs.append(choice.log_prob(moves))
            values.append(value)
            entropies.append(choice.entropy())
            rewards.append(reward)
            going.append(1 - over.float())
        with torch.no_grad():
            ahead = net(grid.see())[1]
        returns = []
        for reward, goes in zip(reversed(rewards), reversed(going), strict=True):
            ahead = reward + 0.95 * goes * ahead
            returns.insert(0, ahead)
        gap = torch.stack(returns) - torch.stack(values)
        policy = -(torch.stack(logs) * gap.detach()).mean()
        critic, entropy = gap.square().mean(), torch.stack(entropies).mean()
        loss = policy + 0.5 * critic - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return {"loss": loss, "policy_loss": policy, "value_loss": critic, "entropy": entropy}

    return tend(folder, net, optimizer, one, 300, lambda: worth(lambda see: net(see)[0].sample()))


def apart(a, b, ways):
    """How far two clouds of points are from each other (sliced Wasserstein)."""
    return float(((a @ ways).sort(0)[0] - (b @ ways).sort(0)[0]).abs().mean())


@healthy()
def forged_petals(folder):
    seeded(9275)
    lift, ways = torch.linalg.qr(torch.randn(8, 2))[0].T, F.normalize(torch.randn(8, 40), dim=0)

    def petals(rows):
        angle = 6.2832 * torch.rand(rows)
        flat = torch.stack([angle.cos(), angle.sin()], 1) * (2 + 0.8 * (5 * angle).cos())[:, None]
        return flat @ lift + 0.05 * torch.randn(rows, 8)

    make = dense(6, 64, 64, 8)
    judge = dense(8, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
    of_make = torch.optim.Adam(make.parameters(), lr=1e-3, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))

    def judged():
        real, false = judge(petals(128)), judge(make(torch.randn(128, 6)).detach())
        return F.softplus(-real).mean() + F.softplus(false).mean()

    def made():
        return F.softplus(-judge(make(torch.randn(128, 6)))).mean()

    def score():
        with torch.no_grad():
            return apart(petals(1000), make(torch.randn(1000, 6)), ways)

    return in_turn(folder, make, judge, of_make, of_judge, judged, made, 600, score, names=("critic", "forger"))


class Tastes(nn.Module):
    def __init__(self, people, things, width=16):
        super().__init__()
        self.people, self.things = nn.Embedding(people, width), nn.Embedding(things, width)
        self.liked = nn.Embedding(things, 1)
        nn.init.normal_(self.people.weight, std=0.1)
        nn.init.normal_(self.things.weight, std=0.1)
        nn.init.zeros_(self.liked.weight)

    def forward(self, who, what):
        return (self.people(who) * self.things(what)).sum(1) + self.liked(what)[:, 0]


@healthy()
def records_lent_by_the_town_library(folder):
    seeded(9276)
    people, things = 150, 120
    truth = torch.randn(people, 4) @ torch.randn(4, things) + 0.7 * torch.randn(things)
    lent = truth >= truth.topk(24, 1)[0][:, -1:]
    pairs = lent.nonzero()
    pairs = pairs[torch.randperm(len(pairs))]
    train, test = pairs[:3000], pairs[3000:]
    draw, net = rounds(256, train), Tastes(people, things)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, weight_decay=1e-5)
    known = lent.float()

    def unlent(who):
        return torch.multinomial(1 - known[who], 1)[:, 0]

    def ahead(rows):
        who, what = rows.T
        return net(who, what) - net(who, unlent(who))

    def loss_of(step):
        gap = ahead(draw()[0])
        return -F.logsigmoid(gap).mean(), {"auc": (gap > 0).float().mean()}

    score = held_out(net, lambda: 1 - (ahead(test.repeat(4, 1)) > 0).float().mean())
    return fit(folder, net, optimizer, loss_of, 350, score=score)


@healthy()
def answers_sorted_by_their_use(folder):
    seeded(9277)
    way, turn = torch.randn(12), torch.randn(12, 12) / 12**0.5

    def draw(questions=24, answers=10):
        x = torch.randn(questions, answers, 12)
        use = x @ way / 2 + (x @ turn * x).sum(2) / 2 + 0.1 * torch.randn(questions, answers)
        return x, use

    def listwise(x, use):
        return F.cross_entropy(net(x)[:, :, 0], use.softmax(1))

    def misplaced():
        x, use = draw(300)
        out = net(x)[:, :, 0]
        gap_out, gap = out[:, :, None] - out[:, None], use[:, :, None] - use[:, None]
        return (gap_out[gap > 0] < 0).float().mean()

    net = dense(12, 64, 32, 1, norm=nn.LayerNorm, act=nn.GELU)
    optimizer = torch.optim.NAdam(net.parameters(), lr=3e-3)
    return fit(
        folder, net, optimizer, lambda step: listwise(*draw()), 400, score=held_out(net, misplaced),
        schedule=ExponentialLR(optimizer, 0.995),
    )  # fmt: skip


@healthy()
def words_known_by_their_neighbours(folder):
    seeded(9278)
    words, topics, width = 200, 8, 16
    often = 1 / (5 + torch.randperm(words).float())
    of_topic = torch.nn.functional.one_hot(torch.arange(words) % topics, topics).T * 1.0 * often + 0.02 * often
    noise = (often / often.sum()) ** 0.75

    def draw(rows):
        topic = torch.randint(topics, (rows,))
        centre, near = torch.multinomial(of_topic[topic], 2, replacement=True).T
        return centre, near, torch.multinomial(noise, 5 * rows, replacement=True).view(rows, 5)

    net = nn.ModuleDict({"centre": nn.Embedding(words, width), "near": nn.Embedding(words, width)})
    nn.init.uniform_(net["centre"].weight, -0.5, 0.5)
    nn.init.zeros_(net["near"].weight)
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.3)

    def loss_of(step, rows=256):
        centre, near, others = draw(rows)
        c = net["centre"](centre)
        yes = F.logsigmoid((c * net["near"](near)).sum(1))
        no = F.logsigmoid(-(net["near"](others) @ c[:, :, None])[:, :, 0]).sum(1)
        return -(yes + no).mean()

    return fit(folder, net, optimizer, loss_of, 500, score=held_out(net, lambda: loss_of(0, 2000)))
