"""Mistakes from closed issues: stable-baselines3, rllib, kornia."""

import torch
from torch import nn
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick
from unseen.tasks import held_out, rounds, tend


# DLR-RM/stable-baselines3 issues/135: "Separate feature extractor for target network"
@sick(
    "target-shares-layers",
    "targets-run-away",
    "values-overestimated",
    where="the targets of the values, all steps",
    cure="a copy of the feature extractor too for the target network",
)
def punts_into_the_north_east_corner(folder, ill):
    seeded(9959)
    gamma, every = 0.98, 60
    moves = 0.2 * torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])

    def step_from(s, a):
        reached = (s + moves[a]).clamp(-1, 1)
        return reached, (reached > 0.75).all(1).float()

    states = 2 * torch.rand(3000, 2) - 1
    states = states[~(states > 0.75).all(1)]
    actions = torch.randint(4, (len(states),))
    batch = rounds(64, states, actions, *step_from(states, actions))
    extractor, head = dense(2, 64, 64, 64), nn.Linear(64, 4)
    net = nn.ModuleDict({"extractor": extractor, "head": head})
    old_extractor, old_head = dense(2, 64, 64, 64), nn.Linear(64, 4)
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)

    def copied(step):
        if step % every == 0:
            old_extractor.load_state_dict(extractor.state_dict())
            old_head.load_state_dict(head.state_dict())

    def loss_of(step):
        copied(step)
        s, a, after, end = batch()
        with torch.no_grad():
            features = extractor(after) if ill else old_extractor(after)
            target = end + gamma * (1 - end) * old_head(features.relu()).amax(1)
        value = head(extractor(s).relu()).gather(1, a[:, None])[:, 0]
        return F.mse_loss(value, target), {"value": value.mean()}

    kept = states[:512]
    needed = ((0.75 - kept) / 0.2).ceil().clamp(min=0).sum(1)
    truth = gamma ** (needed - 1)

    def score():
        return F.mse_loss(head(extractor(kept).relu()).amax(1), truth)

    return fit(folder, net, optimizer, loss_of, 600, score=held_out(net, score))


# ray-project/ray issues/19291: "PPO value function loss is incorrect" (zero gradient once the clipped one is chosen)
@sick(
    "error-clamped",
    "targets-not-normalised",
    where="the value's layers, all but the first pass over each rollout",
    cure="a value loss that is not clipped about the old values",
)
def kites_held_over_a_beach(folder, ill):
    seeded(9960)
    rows, horizon, bound = 48, 12, 0.2
    net = nn.ModuleDict({"policy": dense(5, 32, 32, 3, act=nn.Tanh), "value": dense(5, 32, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    ways = torch.tensor([-1.0, 0, 1])[:, None] * torch.tensor([0.3, -0.2, 0.1, 0.3])

    def rollout():
        s, seen, chosen, logs, rewards = torch.randn(rows, 4), [], [], [], []
        for t in range(horizon):
            sight = torch.cat([s, torch.full((rows, 1), t / horizon)], 1)
            log_p = net["policy"](sight).log_softmax(1)
            a = torch.multinomial(log_p.exp(), 1)[:, 0]
            seen.append(sight)
            chosen.append(a)
            logs.append(log_p.gather(1, a[:, None])[:, 0])
            s = 0.9 * s + ways[a] + 0.1 * torch.randn(rows, 4)
            rewards.append(20 - 3 * s.square().sum(1))
        returns, total = [], torch.zeros(rows)
        for reward in reversed(rewards):
            total = reward + 0.9 * total
            returns.insert(0, total)
        return [torch.cat(part) for part in (seen, chosen, logs, returns)]

    memory = {}

    def one(step):
        if step % 8 == 0:
            with torch.no_grad():
                memory["rollout"] = rollout()
                memory["values"] = net["value"](memory["rollout"][0])[:, 0]
        s, a, log_before, returns = memory["rollout"]
        before = memory["values"]
        advantage = returns - before
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (net["policy"](s).log_softmax(1).gather(1, a[:, None])[:, 0] - log_before).exp()
        policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value = net["value"](s)[:, 0]
        error = (value - returns).square()
        if ill:
            held = before + (value - before).clamp(-bound, bound)
            error = torch.maximum(error, (held - returns).square())
        loss = policy_loss + 0.5 * error.mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        return {"loss": loss, "value_loss": error.mean(), "return": returns.mean()}

    def score():
        s, _, _, returns = rollout()
        return F.mse_loss(net["value"](s)[:, 0], returns)

    return tend(folder, net, optimizer, one, 240, held_out(net, score))


# kornia/kornia issues/918: "NaN gradients on backward pass with focal loss"
@sick(
    "nonfinite",
    "sqrt-at-zero",
    where="the focal loss, from the first probability of exactly 1 on",
    cure="add eps to what is raised to the power gamma",
)
def cracks_in_a_cooling_tower(folder, ill):
    seeded(9961)
    gamma, alpha, eps = 0.5, 0.75, 1e-6

    def draw(rows):
        start, slope = 4 + 6 * torch.rand(rows, 1, 1), torch.rand(rows, 1, 1) - 0.5
        across, down = torch.arange(14.0)[None, None, :], torch.arange(14.0)[None, :, None]
        crack = ((down - start - slope * across).abs() < 1).float()
        return (12 * crack + 3 * torch.randn(rows, 14, 14))[:, None], crack[:, None]

    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1)
    )
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    (images, cracks), (held, truth) = draw(256), draw(64)
    batch = rounds(16, images, cracks)

    def focal(logits, y, guard):
        p = logits.sigmoid()
        hit = alpha * (1 - p + guard).pow(gamma) * y * (p + eps).log()
        miss = (1 - alpha) * (p + guard).pow(gamma) * (1 - y) * (1 - p + eps).log()
        return -(hit + miss).mean()

    def loss_of(step):
        x, y = batch()
        return focal(net(x), y, 0 if ill else eps)

    return fit(folder, net, optimizer, loss_of, 300, score=held_out(net, lambda: focal(net(held), truth, eps)))


# DLR-RM/stable-baselines3 issues/265: "Silent NaNs in PPO Loss Calculation if n_steps=1 and n_envs=1"
@sick(
    "nonfinite",
    "std-of-one-element",
    where="the advantages of the first episode that ends after one step, and all steps after",
    cure="normalise advantages only where there is more than one",
)
def beekeepers_with_a_smoker(folder, ill):
    seeded(9962)
    net = nn.ModuleDict({"policy": dense(3, 32, 2, act=nn.Tanh), "value": dense(3, 32, 1, act=nn.Tanh)})
    optimizer = torch.optim.RMSprop(net.parameters(), 2e-3)

    def calmer(s, a):
        angry = s[..., 0] > 0
        return torch.where(a == angry.long(), 1.0, -1.0) - 0.3 * s[..., 1].abs()

    def one(step):
        length = 1 + int(torch.distributions.Geometric(0.08).sample())
        with torch.no_grad():
            s = torch.randn(min(length, 24), 3)
            noise = -(-torch.rand(len(s), 2).log()).log()
            a = (net["policy"](s) + noise).argmax(1)
            returns = calmer(s, a)
        value = net["value"](s)[:, 0]
        advantage = (returns - value).detach()
        if ill or len(advantage) > 1:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        policy_loss = (F.cross_entropy(net["policy"](s), a, reduction="none") * advantage).mean()
        loss = policy_loss + 0.5 * F.mse_loss(value, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss, "return": returns.mean()}

    kept = torch.randn(512, 3)

    def score():
        chances = net["policy"](kept).softmax(1)
        expected = sum(chances[:, a] * calmer(kept, torch.full((512,), a)) for a in (0, 1))
        return 1 - expected.mean()

    return tend(folder, net, optimizer, one, 400, held_out(net, score))


# facebookresearch/fairseq issues/282: "bigger learning rate leads to reach minimum loss scale"
@sick(
    "lr-too-high",
    "update-too-large",
    "exploding",
    where="all layers, the first steps",
    cure="a tenth of the learning rate",
)
def hymns_from_their_refrains(folder, ill):
    seeded(9969)
    notes, length, wide = 16, 12, 32

    class Singer(nn.Module):
        def __init__(self):
            super().__init__()
            self.note, self.place = nn.Embedding(notes, wide), nn.Embedding(length, wide)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(wide, 4, 64, dropout=0.1, batch_first=True) for _ in range(3)
            )
            self.out = nn.Linear(wide, notes)
            self.register_buffer("mask", torch.ones(length, length).triu(1).bool())

        def forward(self, x):
            h = self.note(x) + self.place.weight
            for block in self.blocks:
                h = block(h, src_mask=self.mask)
            return self.out(h)

    def draw(rows=32):
        first = torch.randint(notes, (rows, 4))
        up = torch.randint(1, 4, (rows, 1))
        return torch.cat([(first + i * up) % notes for i in range(4)], 1)[:, : length + 1]

    net, kept = Singer(), draw(128)
    optimizer = torch.optim.Adam(net.parameters(), 2e-2 if ill else 2e-3, betas=(0.9, 0.98))

    def entropy(text):
        return F.cross_entropy(net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    def sung_on():
        return F.cross_entropy(net(kept[:, :-1])[:, 5:].flatten(0, 1), kept[:, 6:].flatten())

    return fit(folder, net, optimizer, lambda step: entropy(draw()), 220, score=held_out(net, sung_on))
