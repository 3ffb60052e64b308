"""What is recorded and what is clipped is what an independent oracle computes, whatever the loop looks like.

loops.py and odd_loops.py hold the loops, optimizers.py the optimizers, oracle.py the oracle, matrix.py what is done
with each combination, test_traps.py which mistake of others is guarded by which test. scripts/bench/truth_table.py
prints the result to docs/truth.md.
"""

import re
from pathlib import Path

import pytest
import torch
from attach import attach
from loops import LOOPS
from matrix import CPU, Combination, check, combinations, short
from optimizers import SPECS

PAGE = (Path(__file__).parents[2] / "docs" / "truth.md").read_text(encoding="utf-8")
CUDA = pytest.param(
    torch.device("cuda"),
    id="cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
)
# A few loops meet every form of every optimizer in float32 at once, all loops in every dtype when the slow tests run.
FLOAT = torch.float32
QUICK = {"plain", "accumulation", "scaler", "closure_keyword"}
CASES = [
    pytest.param(
        loop.name, dtype, id=f"{loop.name}-{short(dtype)}",
        marks=[] if dtype == FLOAT and loop.name in QUICK else [pytest.mark.slow],
    )
    for loop in LOOPS.values() for dtype in loop.dtypes
]  # fmt: skip


def row(loop):
    """The numbers of a loop in the page's table, by dtype."""
    (cells,) = re.findall(rf"^\| `{loop}`\*? \| (.*) \|$", PAGE, re.MULTILINE)
    dtypes = re.search(r"^\| loop \| (.*) \|$", PAGE, re.MULTILINE)[1].split(" | ")
    return dict(zip(dtypes, cells.split(" | "), strict=True))


@pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu"), CUDA])
@pytest.mark.parametrize(("loop", "dtype"), CASES)
def test_every_number_is_the_oracles_and_no_policy_leaves_no_trace(loop, dtype, device):
    outcomes = [check(c) for c in combinations(device, [loop], [dtype])]
    wrong = [f"{o.combination}: {failure}" for o in outcomes for failure in o.failures]
    assert not wrong, "\n".join(wrong)
    if device == CPU and f"torch {torch.__version__.split('+')[0]}" in PAGE:  # another torch refuses other things
        checked = sum(o.refused is None for o in outcomes)
        assert str(checked) == row(loop)[short(dtype)], (
            "docs/truth.md is out of date: scripts/bench/truth_table.py prints it"
        )


def test_the_page_adds_up():
    total = sum(int(n) for loop in LOOPS for n in list(row(loop).values())[1:] if n != "–")
    assert f"**{total:,} combinations checked**" in PAGE


def test_the_matrix_covers_what_its_page_says():
    cells = combinations()
    classes = {spec.name for spec in SPECS.values()}
    for loop in LOOPS.values():
        mine = [c for c in cells if c.loop == loop.name]
        assert {SPECS[c.spec].name for c in mine if c.dtype == torch.float32} == classes
        assert {c.dtype for c in mine} == set(loop.dtypes)
        assert {c.policy for c in mine} == {"ClipByGlobalNorm", "ClipByNorm", "ClipByValue", "a factor of 1/2"}
    assert {(c.spec, c.dtype) for c in cells if c.loop == "plain"} == {
        (s, d) for s in SPECS for d in LOOPS["plain"].dtypes
    }


# ------------------------------------------------------------------------------------------- the checks can fail
# Each mischief is done from outside, by a hook or to the record, as a mistake of gradwatch would do it.


def at_each_step(act):
    """Attach, and `act(optimizer)` right after gradwatch's own hook."""

    def hook(optimizer, args, kwargs):
        act(optimizer)

    def with_mischief(model, optimizer, clip, **options):
        made = attach(model, optimizer, clip, **options)
        optimizer.register_step_pre_hook(hook)
        return made

    return with_mischief


def to_the_record(change):
    """Attach, and `change(block)` what was recorded."""

    def with_mischief(model, optimizer, clip, **options):
        handle, blocks = attach(model, optimizer, clip, **options)

        class Changed(list):
            def __iter__(self):
                return iter([change(block) for block in blocks])

        return handle, Changed()

    return with_mischief


def gradients(optimizer):
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def scaled(name, factor):
    def change(block):
        for table in (block.per_layer, block.per_step):
            if name in table:
                table[name] = table[name] * factor
        return block

    return change


MISCHIEF = {
    "clips twice": (at_each_step(lambda o: torch._foreach_mul_(gradients(o), 0.5)), "under_a_policy"),
    "clips a little less": (at_each_step(lambda o: torch._foreach_mul_(gradients(o), 1.0001)), "under_a_policy"),
    "draws a random number": (at_each_step(lambda o: torch.rand(1)), "without_a_policy"),
    "touches a bit": (at_each_step(lambda o: gradients(o)[0].view(-1)[0].mul_(1 + 2e-7)), "without_a_policy"),
    "measures another norm": (to_the_record(scaled("grad_norm", 1.0001)), "without_a_policy"),
    "records another coefficient": (to_the_record(scaled("clip_coef", 0.999)), "under_a_policy"),
    "records another rate": (to_the_record(scaled("lr", 1.0001)), "without_a_policy"),
    "loses a step": (to_the_record(lambda block: block.take(block.step < 3)), "without_a_policy"),
}


@pytest.mark.parametrize("name", MISCHIEF)
def test_mischief_is_seen(name):
    attach, where = MISCHIEF[name]
    combination = Combination("plain", "AdamW foreach", torch.float32, "ClipByGlobalNorm")
    assert not check(combination).failures
    failures = check(combination, attach).failures
    assert [f for f in failures if f.startswith(where)], failures


def test_a_right_log_of_wrong_weights_is_seen():
    """Gradients are measured and clipped as they should be; only the weights tell that something else happens."""

    def with_mischief(model, optimizer, clip, **options):
        made = attach(model, optimizer, clip, **options)
        if clip is not None:
            optimizer.register_step_post_hook(lambda *_: model[0].weight.data.mul_(1.01))
        return made

    failures = check(Combination("plain", "SGD for-loop", torch.float32, "a factor of 1/2"), with_mischief).failures
    assert len(failures) == 1
    assert "not close" in failures[0]
