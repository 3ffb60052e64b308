"""Heard sick trainings, fourth part: rewards, policies, and two networks at play.

They only count (the group `heard`). Whoever writes or changes a rule does not read this file.
"""

from __future__ import annotations

import torch
from torch import nn, optim
from torch.nn import functional as F
from unseen import Outcome, dense, fit, seeded, sick
from unseen.reported.sick import rivals
from unseen.tasks import play


def regret(net, best):
    """`score()`: by how much the return that a policy expects falls short of the largest one, on fixed states."""
    states = torch.randn(256, best.shape[0])
    worth = states @ best

    def score():
        with torch.no_grad():
            return float((worth.amax(1) - (net(states).softmax(1) * worth).sum(1)).mean())

    return score


# "GDPO (`scale_rewards='gdpo'`) produces NaN advantages when any reward function returns None/NaN",
# github.com/modelscope/ms-swift/issues/8123
@sick(
    "nonfinite",
    where="all layers, at the first answer that one of the two judges could not read: its advantages are NaN",
    cure="nanmean and nanstd, and 0 where there is no reward",
)  # fmt: skip
def answer_that_could_not_be_judged(folder, ill):
    """Groups of eight answers to a question; two judges, each with a mean of its own."""
    seeded(1132)
    net, best = dense(8, 48, 12), torch.randn(8, 12)
    choice = regret(net, best)

    def loss_of(step):
        x = torch.randn(16, 8)
        log = net(x).log_softmax(1)
        answer = torch.multinomial(log.exp().detach().nan_to_num(1.0), 8, replacement=True)
        right = (x @ best).gather(1, answer)
        short = -answer.float() / 12
        short[torch.rand(16, 8) < 5e-5] = torch.nan
        advantage = torch.zeros(16, 8)
        for given, weight in ((right, 1.0), (short, 0.2)):
            reward = given if ill else given.nan_to_num(float(given.nanmean()))
            advantage += weight * (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-8)
        return -(advantage * log.gather(1, answer)).mean(), {"reward": float(right.mean())}

    return fit(folder, net, optim.AdamW(net.parameters(), 4e-3), loss_of, 500, score=choice)


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
    "no-progress", "noise-dominated", "labels-mismatched", "labels-do-not-fit-inputs",
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


# "RL loss importance ratio can overflow to non-finite gradients" (rollouts of an older policy),
# github.com/PrimeIntellect-ai/prime-rl/issues/2972
@sick(
    "exploding", "spike", "nonfinite", "noise-dominated", "lr-too-high",
    where="all layers, once the policy has left the one that the rollouts came from: ratios without a bound",
    cure="no ratio above 2",
)  # fmt: skip
def ratios_to_a_policy_of_long_ago(folder, ill):
    """Four words one after another; whoever writes gets the new weights every hundred steps."""
    seeded(1135)
    net, best = dense(8, 48, 40), torch.randn(8, 40)
    old = dense(8, 48, 40)
    choice = regret(net, best)

    def loss_of(step):
        if step % 100 == 0:
            old.load_state_dict(net.state_dict())
        x = torch.randn(32, 8)
        with torch.no_grad():
            said = old(x).log_softmax(1)
            word = torch.multinomial(said.exp(), 4, replacement=True)
            reward = (x @ best).gather(1, word).sum(1)
            advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
        log = net(x).log_softmax(1).gather(1, word).sum(1)
        ratio = (log - said.gather(1, word).sum(1)).exp()
        if not ill:
            ratio = ratio.detach().clamp(max=2.0) * log
        return -(ratio * advantage).mean(), {"reward": float(reward.mean())}

    return fit(folder, net, optim.Adam(net.parameters(), 3e-3), loss_of, 500, score=choice)


# "Incorrect KL Loss Sign Causes Policy Training Collapse", github.com/qiancheng0/ToolRL/issues/52
@sick(
    "wrong-sign", "loss-unbounded", "negative-loss", "exploding", "weight-growth",
    where="all layers, all steps: the further from the model that it came from, the better",
    cure="the divergence is added to the loss",
)  # fmt: skip
def divergence_that_is_sought(folder, ill):
    """A policy that already chooses well is to choose better, and to stay near."""
    seeded(1136)
    net, before, best = dense(8, 48, 12), dense(8, 48, 12), torch.randn(8, 12)
    make = optim.Adam(before.parameters(), 3e-3)
    for _ in range(150):
        x = torch.randn(64, 8)
        make.zero_grad()
        F.cross_entropy(before(x), (x @ best).argmax(1)).backward()
        make.step()
    net.load_state_dict(before.state_dict())
    choice = regret(net, best)

    def loss_of(step):
        x = torch.randn(32, 8)
        log = net(x).log_softmax(1)
        word = torch.multinomial(log.exp().detach(), 8, replacement=True)
        reward = (x @ best).gather(1, word)
        advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        gap = before(x).log_softmax(1).detach().gather(1, word) - log.gather(1, word)
        apart = (gap.exp() - gap - 1).mean()
        policy = -(advantage * log.gather(1, word)).mean()
        logged = {"pg_loss": float(policy), "kl_loss": float(apart), "reward": float(reward.mean())}
        return policy + (-1.0 if ill else 1.0) * apart, logged

    return fit(folder, net, optim.AdamW(net.parameters(), 1e-3), loss_of, 400, score=choice)


# "Bug in mnist Gan implementation" (the maker's loss stays at 16.0302, the logarithm of the least share that the
# library allows; a lower rate for the judge), github.com/tdeboissiere/DeepLearningImplementations/issues/11
@sick(
    "generator-starves", "vanishing", "dead-layer", "no-progress", "saturated",
    where="G, from some tens of steps on: the judge is sure, and behind the clipped share there is no slope",
    cure="a tenth of the judge's rate",
)  # fmt: skip
def maker_behind_a_clipped_share(folder, ill) -> Outcome:
    make, judge = rivals(1137)

    def share(x):
        return judge(x).sigmoid().clamp(1.08e-7, 1 - 1.2e-7)

    def judge_loss(real, made):
        return -(share(real).log() + (1 - share(made)).log()).mean()

    def make_loss(made):
        return -share(made).log().mean()

    with torch.no_grad():
        make[-1].bias += 15
    of_make, of_judge = (
        optim.Adam(make.parameters(), 3e-4, (0.5, 0.9)),
        optim.Adam(judge.parameters(), 5e-2 if ill else 1e-3, (0.5, 0.9)),
    )
    return play(folder, make, judge, of_make, of_judge, judge_loss, make_loss, 700)
