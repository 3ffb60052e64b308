"""Runs the matrix of tests/truth and prints docs/truth.md: loops x optimizers x dtypes, and what torch refuses.

    python scripts/bench/truth_table.py > docs/truth.md
    python scripts/bench/truth_table.py --device cuda --json docs/measurements/truth_cuda.json

`--full` tries every form of every optimizer in every loop, dtype and under every policy; it takes many minutes.
`--third-parties` prints the table of other packages' optimizers alone: run it where they are installed.
The exit code is 1 where a number is not the oracle's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "truth")]

import torch  # noqa: E402
from loops import FLOATS, LOOPS  # noqa: E402
from matrix import BROKEN_FUSED, Combination, Outcome, check, combinations, short  # noqa: E402
from optimizers import SPECS  # noqa: E402
from third_parties import MAX_NORM, PARTIES  # noqa: E402
from third_parties import STEPS as PARTY_STEPS  # noqa: E402
from third_parties import check as check_party  # noqa: E402
from third_parties import version as party_version  # noqa: E402
from trial import STEPS  # noqa: E402

import gradwatch  # noqa: E402

INTRO = """\
# Truth

Every loop below was trained with every optimizer class of torch, on the CPU, and each combination was held against an
oracle: the same numbers computed in float64 from copies of the gradients, by code that does not use gradwatch. The code
is in [tests/truth](../tests/truth), and the tests run it. This page is printed by `scripts/bench/truth_table.py`.

**{checked:,} combinations checked** with torch {torch}. {refused:,} more are refused by torch itself, as listed below.

## What is checked

A combination is a loop, an optimizer, a dtype and a policy. It is trained for {steps} steps, four times: bare, watched
without a policy, watched under the policy, and clipped by hand by the oracle.

| what | against what | how close |
|---|---|---|
| without a policy: weights, gradients, optimizer state, scaler and schedule, losses, random numbers | the bare training | to the bit |
| `grad_norm` of each layer and in total, on every step | the norms of the true gradient: accumulated, un-scaled, coalesced | 2.4e-7 in float64, as the record is kept in float32; else 2e-5 |
| the norms that policies see | the same | 1e-12 in float64, else 1e-5 |
| `clip_coef` of each layer, `clipped_norm` | the oracle's policy | twice and four times that |
| the gradient that the optimizer consumes, at every evaluation of a closure | the true gradient, clipped once by the oracle | 20 units in the last place; in half precision half a unit |
| the weights under the policy | those of the training clipped by hand | rounding of {steps} steps |
| number of steps, which of them a scaler dropped, evaluations of a closure, `lr` of each param group | what the loop did | exactly; `lr` to float32 |

The policies go round the combinations: `ClipByGlobalNorm`, `ClipByNorm`, `ClipByValue`, and a factor of 1/2, because
acting twice shows in a factor and not in a clip. Thresholds lie between the sizes that a loop meets: some are clipped,
some are not.

Loops marked * meet every form of every optimizer in every dtype. The others meet every class in float32 and in one more
dtype, in a form that changes from loop to loop.
"""  # noqa: E501  # rows of a Markdown table
UNREPEATABLE = f"""
In half precision on a CPU {BROKEN_FUSED[0]} and {BROKEN_FUSED[1]} read unwritten memory, so that torch alone does
not repeat itself (pytorch#191763). They are checked, but not to the bit and not by their weights.

A strong Wolfe line search (LBFGS) in float32 takes another branch for another last digit: its weights under a policy
are not compared, its norms are.
"""

THIRD_PARTIES = f"""
## Optimizers of other packages

Each trains a small network for {PARTY_STEPS} steps in float32 on the CPU, not compiled. It is right where the
weights of a watched training are those of the bare one to the bit, the recorded norms those of the float64 oracle to
2e-5, and the weights under `ClipByGlobalNorm({MAX_NORM})` those under `clip_grad_norm_` (relative
1e-4, absolute 1e-6). They are watched with `slots=True`; of what is kept quantised there is no norm.
`ZeroRedundancyOptimizer` has one rank here, and two in `tests/measure/test_distributed.py`. bitsandbytes, a wheel of
43 MB, is not installed with `.[dev]`, and its test is skipped where it is missing.

"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--loops", nargs="*", help="only these")
    parser.add_argument("--full", action="store_true", help="every form, dtype and policy everywhere")
    parser.add_argument("--json", type=Path, help="write the result there instead of printing the page")
    parser.add_argument("--third-parties", action="store_true", help="only the table of other packages' optimizers")
    args = parser.parse_args()
    if args.third_parties:
        text, wrong = third_parties()
        print(text, end="")
        print(*wrong, sep="\n", file=sys.stderr)
        return 1 if wrong else 0
    outcomes = [check(c) for c in combinations(torch.device(args.device), args.loops, full=args.full)]
    wrong = [f"{o.combination}: {failure}" for o in outcomes for failure in o.failures]
    if args.json:
        args.json.write_text(json.dumps(measured(outcomes, args, wrong), indent=1) + "\n")
    else:
        text, failed = third_parties()
        wrong += failed
        print(page(outcomes) + text, end="")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def page(outcomes: list[Outcome]) -> str:
    """The whole page."""
    checked = sum(o.refused is None for o in outcomes)
    text = INTRO.format(checked=checked, refused=len(outcomes) - checked, torch=version(), steps=STEPS)
    text += "\n## Loops\n\nThe number of combinations of each loop, by dtype.\n\n" + by_loop(outcomes)
    text += "\n## Optimizers\n\nThe number of combinations of each form.\n\n" + by_optimizer(outcomes)
    text += "\n## What torch refuses\n\nThe bare loop raises, so there is nothing to watch.\n\n" + refusals(outcomes)
    return text + UNREPEATABLE


def third_parties() -> tuple[str, list[str]]:
    """The section on other packages, and what was wrong."""
    rows, wrong = [], []
    for name, party in PARTIES.items():
        try:
            result = check_party(name)
        except ImportError:
            rows.append([name, party.package, "not installed here", "", "", ""])
            continue
        wrong += [f"{name}: {failure}" for failure in result.failures]
        plain = [slot for slot in result.slots if slot not in result.left_out]
        held = [f"`{slot}`" for slot in plain] + [f"`{slot}` of small layers" for slot in result.left_out]
        verdict = "; ".join(result.failures) or "yes"
        rows.append([name, party.package, party_version(party), f"{result.norm_error:.1e}", verdict, ", ".join(held)])
    head = ["optimizer", "package", "version", "norms: largest relative error", "right", "slots recorded"]
    return THIRD_PARTIES + table(head, rows), wrong


def by_loop(outcomes: list[Outcome]) -> str:
    count = Counter((o.combination.loop, o.combination.dtype) for o in outcomes if o.refused is None)
    rows = [
        [
            f"`{name}`{'*' if loop.every_form else ''}",
            loop.title,
            *(str(count[name, d]) if d in loop.dtypes else "–" for d in FLOATS),
        ]
        for name, loop in LOOPS.items()
    ]
    return table(["loop", "what it does", *map(short, FLOATS)], rows)


def by_optimizer(outcomes: list[Outcome]) -> str:
    count = Counter(o.combination.spec for o in outcomes if o.refused is None)
    forms = defaultdict(list)
    for key, spec in SPECS.items():
        if count[key]:
            forms[spec.name].append(f"{spec.form} {count[key]}".strip())
    return table(["optimizer", "form and combinations"], [[name, ", ".join(found)] for name, found in forms.items()])


def refusals(outcomes: list[Outcome]) -> str:
    """One row per message: who is refused, in which loops and dtypes."""
    groups: dict[str, list[Combination]] = defaultdict(list)
    for o in outcomes:
        if o.refused is not None:
            name = SPECS[o.combination.spec].name
            message = re.sub(rf"\b{name}\b", "…", o.refused).replace("`", "'").replace("|", "/")
            groups[re.sub(r":? \[.*", "", message)].append(o.combination)
    rows = [
        [
            f"`{message}`",
            listed(optimizers(found, {o.combination.spec for o in outcomes})),
            listed([f"`{c.loop}`" for c in found], "loops"),
            listed([short(c.dtype) for c in found]),
        ]
        for message, found in groups.items()
    ]
    return table(["torch says", "to", "in", "dtypes"], rows)


def optimizers(found: list[Combination], tried: set[str]) -> list[str]:
    """Their names; a class is named alone where all its forms that were tried are among them."""
    forms = {c.spec for c in found}
    return [
        SPECS[f].name if {s for s in tried if SPECS[s].name == SPECS[f].name} <= forms else f
        for f in SPECS
        if f in forms
    ]


def listed(names: Iterable[str], what: str = "") -> str:
    """The names once each; only their number where they are many loops."""
    unique = dict.fromkeys(names)
    return f"{len(unique)} {what}" if what and len(unique) > 6 else ", ".join(unique)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(line)} |\n" for line in [head, *rows]]
    return lines[0] + "|" + "---|" * len(head) + "\n" + "".join(lines[1:])


def version() -> str:
    return torch.__version__.split("+")[0]


def measured(outcomes: list[Outcome], args: argparse.Namespace, wrong: list[str]) -> dict[str, Any]:
    """The result as plain data, for docs/measurements."""
    refused = Counter(o.refused for o in outcomes if o.refused is not None)
    return {
        "what": "combinations of loop, optimizer, dtype and policy held against a float64 oracle (tests/truth)",
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "gradwatch": gradwatch.__version__,
        "full": args.full,
        "checked": sum(o.refused is None for o in outcomes),
        "wrong": wrong,
        "refused by torch": dict(refused),
        "not repeated by torch itself": [str(o.combination) for o in outcomes if o.unrepeatable and o.refused is None],
        "by loop and dtype": {
            f"{loop}, {short(dtype)}": n
            for (loop, dtype), n in Counter(
                (o.combination.loop, o.combination.dtype) for o in outcomes if o.refused is None
            ).items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
