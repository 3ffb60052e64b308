"""Heard sick trainings, fourth part: rewards, policies, and two networks at play.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import dense, fit, seeded, sick


def regret(net, best):
    """`score()`: by how much the return that a policy expects falls short of the largest one, on fixed states."""
    states = torch.randn(256, best.shape[0])
    worth = states @ best

    def score():
        with torch.no_grad():
            return float((worth.amax(1) - (net(states).softmax(1) * worth).sum(1)).mean())

    return score


# "shape of PPO advantages" ([B, 1] times [B]), github.com/RITCHIEHuang/DeepRL_Algorithms/issues/13
@sick(
    "no-progress", "noise-dominated", "update-too-small", "shapes-broadcast",
    where="all layers, all steps: each ratio is weighed with all advantages, whose mean is 0",
    cure="advantages.reshape(-1)",
)  # fmt: skip
def every_ratio_times_every_advantage(folder, ill):
    """Rounds of four steps over what was drawn (PPO)."""
    seeded(1133)
    net, best, kept = dense(8, 48, 6), torch.randn(8, 6), {}
    choice = regret(net, best)

    def loss_of(step):
        if step % 4 == 0:
            x = torch.randn(128, 8)
            with torch.no_grad():
                log = net(x).log_softmax(1)
                action = torch.multinomial(log.exp(), 1)
                reward = (x @ best).gather(1, action) + 0.3 * torch.randn(128, 1)
                advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
            kept.update(x=x, action=action, old=log.gather(1, action)[:, 0], advantage=advantage, reward=reward.mean())
        log = net(kept["x"]).log_softmax(1).gather(1, kept["action"])[:, 0]
        ratio = (log - kept["old"]).exp()
        advantage = kept["advantage"] if ill else kept["advantage"].reshape(-1)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return -gain, {"reward": float(kept["reward"])}

    def before(step):
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    return fit(folder, net, optim.Adam(net.parameters(), 1e-3), loss_of, 600, before_step=before, score=choice)


# "Silent bug in ppo implementation - rewards shifted" (the one before the observation is kept, not the one after it),
# github.com/openai/spinningup/issues/50
@sick(
    "no-progress", "noise-dominated", "labels-mismatched",
    where="all layers, all steps: an act is judged by what came of the act before it",
    cure="keep the reward that follows the act",
)  # fmt: skip
def rewards_of_the_act_before(folder, ill):
    """States that come as they like: what an act brings is all that can be learned."""
    seeded(1134)
    net, best = nn.ModuleDict({"actor": dense(8, 48, 6), "critic": dense(8, 48, 1)}), torch.randn(8, 6)
    choice = regret(net["actor"], best)

    def loss_of(step):
        x = torch.randn(128, 8)
        log, value = net["actor"](x).log_softmax(1), net["critic"](x)[:, 0]
        action = torch.multinomial(log.exp().detach(), 1)
        reward = (x @ best).gather(1, action)[:, 0]
        kept = reward.roll(1) if ill else reward
        advantage = (kept - value).detach()
        actor, critic = -(advantage * log.gather(1, action)[:, 0]).mean(), F.mse_loss(value, kept)
        return actor + 0.5 * critic, {"return": float(reward.mean()), "value_loss": float(critic)}

    return fit(folder, net, optim.Adam(net.parameters(), 2e-3), loss_of, 500, score=choice)
