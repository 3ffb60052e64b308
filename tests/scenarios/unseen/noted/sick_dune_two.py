"""Six trainings on a stove, frogs, eggs, boards, gulls and letters."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import in_turn, rounds, tend

# ------------------------------------------------------------------------------------------------------------- stove


# https://github.com/LAMDA-RL/PRDC/pull/1
@sick(
    "next-state-rescaled",
    "values-overestimated",
    "inputs-not-normalised",
    where="what is asked of the values: next states twenty times as large as any state, rewards that are not scaled",
    cure="the factor on the rewards of a batch, not on its next states",
)
def stove_of_a_greenhouse(folder, ill):
    seeded(3297)

    def burn(state, wood):
        warm, wind, damp = state.unbind(1)
        heat = wood.float() / 4
        after = 0.8 * warm + 0.6 * (heat - 0.5) - 0.3 * wind + 0.1 * damp
        wind = (0.9 * wind + 0.3 * torch.randn_like(wind)).clamp(-2, 2)
        damp = (0.95 * damp - 0.1 * heat + 0.1 * torch.randn_like(damp)).clamp(-2, 2)
        after = (after + 0.05 * torch.randn_like(after)).clamp(-2, 2)
        return torch.stack([after, wind, damp], 1), -0.05 * after.abs() - 0.005 * heat

    state, wood = torch.randn(6000, 3).clamp(-2, 2), torch.randint(5, (6000,))
    log = [state, wood, *burn(state, wood)]
    net, copy = dense(3, 64, 64, 5), dense(3, 64, 64, 5)
    copy.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)

    def one(step):
        at = torch.randint(6000, (64,))
        batch = [column[at] for column in log]
        part = 2 if ill else 3
        batch[part] = batch[part] * 20
        state, wood, after, reward = batch
        if step % 50 == 0:
            copy.load_state_dict(net.state_dict())
        with torch.no_grad():
            best = net(after).argmax(1, keepdim=True)
            wanted = reward + 0.9 * copy(after).gather(1, best)[:, 0]
        value = net(state).gather(1, wood[:, None])[:, 0]
        loss = F.mse_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "value": value.mean()}

    def score():
        here, cost = torch.randn(300, 3).clamp(-2, 2), 0.0
        with torch.no_grad():
            for _ in range(30):
                here, reward = burn(here, net(here).argmax(1))
                cost -= float(reward.mean())
        return cost

    return tend(folder, net, optimizer, one, 1000, score)


# -------------------------------------------------------------------------------------------------------------- frogs


# https://github.com/speechbrain/speechbrain/issues/1410
@sick(
    "lr-too-high",
    "update-too-large",
    where="the encoder that had been trained before: its group of parameters",
    cure="a rate for the encoder that is a hundred times smaller",
)
def croaks_of_pond_frogs(folder, ill):
    seeded(3298)
    basis = torch.randn(6, 40)

    def croaks(kinds, n):
        y = torch.randint(len(kinds), (n,))
        return (kinds[y] + 0.35 * torch.randn(n, 6)).sin() @ basis + 0.3 * torch.randn(n, 40), y

    birds, frogs = torch.randn(40, 6) * 1.5, torch.randn(8, 6) * 1.5
    encoder = nn.Sequential(dense(40, 64, 64, act=nn.GELU), nn.GELU(), nn.Linear(64, 32))
    earlier = nn.Sequential(encoder, nn.Linear(32, 40))
    before = torch.optim.Adam(earlier.parameters(), 2e-3)
    for _ in range(400):
        x, y = croaks(birds, 64)
        before.zero_grad()
        F.cross_entropy(earlier(x), y).backward()
        before.step()
    net = nn.ModuleDict({"encoder": encoder, "head": nn.Linear(32, 8)})
    draw = rounds(16, *croaks(frogs, 160))
    x_fresh, y_fresh = croaks(frogs, 1000)
    groups = [
        {"params": net["encoder"].parameters(), "lr": 0.1 if ill else 1e-3},
        {"params": net["head"].parameters(), "lr": 3e-3},
    ]

    def loss_of(step):
        x, y = draw()
        out = net["head"](net["encoder"](x))
        return F.cross_entropy(out, y), {"accuracy": (out.argmax(1) == y).float().mean()}

    def score():
        with torch.no_grad():
            return F.cross_entropy(net["head"](net["encoder"](x_fresh)), y_fresh)

    return fit(folder, net, torch.optim.Adam(groups), loss_of, 200, score=score)


# --------------------------------------------------------------------------------------------------------------- eggs


# https://github.com/fastino-ai/GLiNER2/pull/155
@sick(
    "nonfinite",
    where="all layers, from the step on in which a probability rounds to one in half precision",
    cure="probabilities of single precision before the clamp and the logarithm",
)
def cracked_eggs_in_a_tray(folder, ill):
    seeded(3299)
    crack = torch.randn(12)
    net = dense(12, 48, 48, 1)

    def trays(n=64, eggs=8):
        x = torch.randn(n, eggs, 12)
        bad = ((x @ crack) / crack.norm() > 1.6).any(1)
        return x, bad.float()

    def entropy(tray, bad):
        return -(bad * tray.log() + (1 - bad) * (1 - tray).log()).mean()

    def loss_of(step):
        x, bad = trays()
        with torch.autocast("cpu", torch.bfloat16):
            cracked = net(x)[..., 0].sigmoid()
        cracked = cracked if ill else cracked.float()
        whole = torch.log1p(-cracked.clamp(max=1.0 - 1e-6)).sum(1)
        tray = (1 - whole.exp()).float().clamp(1e-5, 1 - 1e-5)
        right = ((tray > 0.5) == (bad > 0.5)).float().mean()
        return entropy(tray, bad), {"accuracy": right}

    def score():
        x, bad = trays(1000)
        with torch.no_grad():
            single = F.logsigmoid(-net(x)[..., 0]).sum(1)
            return entropy((1 - single.exp()).clamp(1e-5, 1 - 1e-5), bad)

    return fit(folder, net, torch.optim.Adam(net.parameters(), 3e-3), loss_of, 800, score=score)


# -------------------------------------------------------------------------------------------------------------- grain


# https://github.com/omoindrot/tensorflow-triplet-loss/issues/37
@sick(
    "representation-collapse",
    where="the embeddings: all come to one point, and the loss stays at the margin",
    cure="embeddings of length one, before the hardest triplets are looked for",
)
def grain_of_planed_boards(folder, ill):
    seeded(3300)
    woods = torch.randn(10, 4)
    lift, light = torch.randn(4, 24), torch.randn(6, 24)
    net = dense(24, 64, 64, 8)

    def boards(n):
        y = torch.randint(10, (n,))
        return (woods[y] + 0.2 * torch.randn(n, 4)).sin() @ lift + 1.5 * torch.randn(n, 6) @ light, y

    def embed(x):
        e = net(x)
        return e if ill else F.normalize(e, dim=1)

    def loss_of(step):
        x, y = boards(40)
        e = embed(x)
        apart = (e[:, None] - e[None]).square().sum(2)
        same = y[:, None] == y[None]
        furthest = (apart * same).max(1).values
        nearest = (apart + 1e6 * same).min(1).values
        return F.relu(furthest - nearest + 0.5).mean(), {"distance": apart.mean()}

    def score():
        with torch.no_grad():
            (x, y), (known, its) = boards(500), boards(500)
            return float((its[torch.cdist(embed(x), embed(known)).argmin(1)] != y).float().mean())

    return fit(folder, net, torch.optim.Adam(net.parameters(), 0.01), loss_of, 400, score=score)


# -------------------------------------------------------------------------------------------------------------- gulls


# https://github.com/ooples/AiDotNet/issues/1936
@sick(
    "dead-layer",
    "softmax-of-one-output",
    where="the critic, all layers: what it says is always one, and the maker learns nothing from it",
    cure="a critic that ends in a plain linear layer of one output",
)
def gulls_on_a_pier(folder, ill):
    seeded(3301)
    maker = dense(6, 64, 64, 2, act=nn.LeakyReLU)
    critic = dense(2, 64, 64, 1, act=nn.LeakyReLU)
    if ill:
        critic.append(nn.Softmax(dim=1))

    def gulls(n=64):
        along = torch.rand(n)
        return torch.stack([4 * along - 1, (5 * along).sin() + 1], 1) + 0.05 * torch.randn(n, 2)

    def judged():
        real, fake = gulls(), maker(torch.randn(64, 6)).detach()
        share = torch.rand(64, 1)
        between = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()

    def made():
        return -critic(maker(torch.randn(64, 6))).mean()

    def apart(a, b):
        return float(torch.cdist(a, b).mean())

    def score():
        with torch.no_grad():
            fake, real = maker(torch.randn(400, 6)), gulls(400)
            return 2 * apart(fake, real) - apart(fake, fake) - apart(real, real)

    of_maker = torch.optim.Adam(maker.parameters(), 5e-4, betas=(0.5, 0.9))
    of_critic = torch.optim.Adam(critic.parameters(), 5e-4, betas=(0.5, 0.9))
    return in_turn(folder, maker, critic, of_maker, of_critic, judged, made, 250, score, rounds=3,
                   names=("critic", "generator"))  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ letters


# https://github.com/huggingface/accelerate/issues/2341
@sick(
    "accumulation-wiped",
    where="all layers: of eight small batches seven leave nothing behind",
    cure="optimizer.zero_grad() once, before the first of the eight",
)
def letters_to_a_lighthouse_keeper(folder, ill):
    seeded(3302)
    words, senders, parts = 150, 12, 8
    habit = (1.4 * torch.randn(senders, words)).softmax(1)
    net = nn.Sequential(nn.EmbeddingBag(words, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, senders))
    optimizer = torch.optim.SGD(net.parameters(), 0.2, momentum=0.9)

    def letters(n):
        sender = torch.randint(senders, (n,))
        return torch.multinomial(habit[sender], 16, replacement=True), sender

    def one(step):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(parts):
            text, sender = letters(4)
            if ill:
                net.zero_grad()
            loss = F.cross_entropy(net(text), sender) / parts
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        return {"loss": total}

    def score():
        text, sender = letters(1000)
        with torch.no_grad():
            return F.cross_entropy(net(text), sender)

    return tend(folder, net, optimizer, one, 300, score)
