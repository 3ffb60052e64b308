"""Tokens of experts: the shares that a router gives are those that are counted by hand, of each call that counts."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import watch

from gradwatch import open_history
from gradwatch.measure.routers import routers

EXPERTS, TOP = 5, 2


class Experts(nn.Module):
    """A mixture of experts as most write it: a linear gate beside a list."""

    def __init__(self, notes):
        super().__init__()
        self.top_k, self.notes = TOP, notes
        self.gate = nn.Linear(4, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(EXPERTS))

    def forward(self, x):
        scores, chosen = self.gate(x).topk(TOP)
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self.notes.append(chosen.detach().clone())
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            out = out + expert(x) * (scores.softmax(-1) * (chosen == e)).sum(-1, keepdim=True)
        return x + out


class Net(nn.Module):
    def __init__(self, notes):
        super().__init__()
        self.blocks = nn.ModuleList(Experts(notes) for _ in range(2))

    def forward(self, x, again=False):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if again else block(x)
        return x


def train(folder, asked=True, again=False, loop="plain", **options):
    torch.manual_seed(0)
    notes, steps = [], []
    model = Net(notes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, folder, activations=asked, activations_every=2, **options) as handle:
        run = torch.compile(model, backend="eager") if loop == "compile" else model
        for _ in range(5):
            optimizer.zero_grad()
            notes.clear()
            for _ in range(2):  # micro-batches
                with torch.autocast("cpu", torch.bfloat16, enabled=loop == "autocast"):
                    loss = run(torch.randn(3, 7, 4), again).float().square().mean()
                loss.backward()
            with torch.no_grad():
                model(torch.randn(3, 7, 4))
            optimizer.step()
            steps.append([torch.cat([n.flatten() for n in notes[block::2]]).numpy() for block in (0, 1)])
    return open_history(handle.dir).activations, steps, [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("again", "loop"), [(False, "plain"), (True, "plain"), (False, "autocast"), (False, "compile")]
)
def test_every_share_is_counted_by_hand(again, loop, tmp_path):
    table, steps, _ = train(tmp_path, again=again, loop=loop)
    table = table.with_values("tokens")
    assert table.layers == tuple(f"blocks.{b}.gate[{e}]" for b in (0, 1) for e in range(EXPERTS))
    assert table.step.tolist() == [0, 1, 2, 4]
    for row, step in enumerate(table.step):
        wanted = [(chosen == e).mean() for chosen in steps[step] for e in range(EXPERTS)]
        np.testing.assert_allclose(table.values["tokens"][row], wanted, rtol=1e-6)
        counted = [(chosen == e).sum() for chosen in steps[step] for e in range(EXPERTS)]
        np.testing.assert_array_equal(table.values["token_count"][row], counted)
        assert len(steps[step][0]) == 2 * 3 * 7 * TOP


def test_patterns_choose_routers_and_training_is_bit_identical(tmp_path):
    table, _, weights = train(tmp_path / "a", asked=["blocks.1", "blocks.1.gate"])
    assert table.with_values("tokens").layers == tuple(f"blocks.1.gate[{e}]" for e in range(EXPERTS))
    without, _, same = train(tmp_path / "b", asked=False)
    assert not len(without)
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_routers_of_hugging_face_are_found(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.MixtralConfig(vocab_size=50, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=2, num_local_experts=4)  # fmt: skip
    torch.manual_seed(0)
    model = transformers.MixtralForCausalLM(config)
    assert {(router.experts, router.choices) for router in routers(model).values()} == {(4, 2)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, activations=True) as handle:
        ids = torch.randint(50, (2, 12))
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    table = open_history(handle.dir).activations.with_values("tokens")
    assert len(table.layers) == 8
    np.testing.assert_allclose(table.values["tokens"].reshape(2, 4).sum(axis=1), 1, rtol=1e-6)


def test_what_a_router_says_that_it_chose_counts_for_more_than_its_scores(tmp_path):
    class Biased(nn.Module):  # DeepSeek-V3's: a bias chooses, and groups of experts
        def forward(self, x):
            scores = x @ torch.eye(4, EXPERTS)
            chosen = (scores + torch.tensor([0.0, 0, 0, 50, 100])).topk(TOP).indices
            return scores, scores.gather(1, chosen), chosen

    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts, self.head = Biased(), nn.ModuleList([nn.Linear(4, 4)] * EXPERTS), nn.Linear(2, 1)

        def forward(self, x):
            return self.head(self.router(x)[1])

    model = Sparse()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tmp_path, activations=True) as handle:
        model(torch.rand(6, 4)).sum().backward()
        optimizer.step()
    table = open_history(handle.dir).activations.with_values("tokens")
    assert dict(zip(table.layers, table.values["token_count"][0], strict=True)) == {
        f"router[{e}]": 6.0 * (e > 2) for e in range(EXPERTS)
    }


def test_a_gate_without_experts_is_no_router():
    model = nn.ModuleDict({"gate": nn.Linear(2, 3), "mlp": nn.Linear(2, 2)})
    assert routers(model) == {}
