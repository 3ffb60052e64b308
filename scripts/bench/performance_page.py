"""Prints docs/performance.md from the JSON files that the benchmarks left in docs/measurements.

    python scripts/bench/performance_page.py > docs/performance.md

What has not been measured is left out, and the page says which scripts have not run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs" / "measurements"
Report = Mapping[str, Any]

INTRO = """\
# Performance

What gradwatch costs, next to torch's own `clip_grad_norm_`. The numbers were measured by the
scripts named below, which anyone can run; `scripts/bench/performance_page.py` prints this page from their results in
[measurements](measurements). Every benchmark interleaves what it compares, in a new order each round, and reports
medians over rounds. Ratios of one run on one machine are comparable; absolute times are not. *Load* is the number of
processes that ran or wanted to run when a benchmark began: where it was above 1, other work disturbed it, and its times
are not shown. What is counted (launches, instructions, bytes) is the same under any load.

## Bytes moved

A step of clipping and AdamW does little arithmetic: its time is that of reading and writing memory. With fp32
parameters, for each of them:

| pass | reads and writes | bytes |
|---|---|---|
| norms | reads the gradient | 4 |
| scaling | reads and writes the gradient | 8 |
| fused AdamW | reads gradient, weight and two moments; writes weight and two moments | 28 |

torch's `clip_grad_norm_` followed by the fused step moves 4 + 8 + 28 = **40** bytes. Where the fused optimizer takes
the coefficient along, there is no scale pass, but the step also writes the clipped gradient, so that `p.grad`
afterwards holds what it holds with torch: 4 + 28 + 4 = **36** bytes, 0.90 of torch's. The norm of every layer is part
of the norm pass, so recording it moves nothing more. Weight norms read 4 more, on one step in `every`.

On a CPU with several threads there is more to win: torch takes the norm of a whole tensor on one thread, gradwatch goes
by rows, which all threads share (from 32,768 elements on) and which keeps the digits of long sums.
"""


QUIET = 1.0  # the load up to which a time is shown
CLOCKS = re.compile(r"(^|_)(seconds|ms|clock|cpu)(_|$)")  # in the names of figures that are times


def without_clocks(value: Any) -> Any:
    """The figures of a report that are no times."""
    if isinstance(value, list):
        return [without_clocks(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {k: without_clocks(v) for k, v in value.items() if not CLOCKS.search(k) and k != "thread"}


def page(folder: Path = FOLDER) -> str:
    """The whole page, from the files in `folder`."""
    text, waiting, loaded = INTRO, [], []
    for title, script, name, section in SECTIONS:
        file = folder / name
        if not file.exists():
            waiting.append(f"`{script}` ({title[0].lower()}{title[1:]})")
            continue
        report = json.loads(file.read_text())
        if report.get("load", 0) <= QUIET or section is instruction_counts:
            text += f"\n## {title}\n\n" + section(report, name)
            continue
        loaded.append(f"`{script}` (load {report['load']}: [JSON](measurements/{name}))")
        counted = without_clocks(report) if section not in (optimizer_phase, side_by_side) else {}
        text += f"\n## {title}\n\n" + section(counted, name) if counted else ""
    if loaded:
        text += (
            "\n## What other work disturbed\n\nTimes of these were taken while other work ran on the machine, so they "
        )
        text += "are no evidence and\nare not shown: " + ",\n".join(loaded) + ".\n"
    if waiting:
        text += "\n## What has not run\n\nThese scripts are ready and their results are not here yet: "
        text += ", ".join(waiting) + ".\n"
    return text


# ------------------------------------------------------------------------------------------------------- one benchmark


def optimizer_phase(report: Report, name: str) -> str:
    """bench_step.py: the ratios to torch."""
    text = (
        "Clip, recording and optimizer step, divided by the time of torch's clip and step. *No clip* has no policy\n"
        "and so no scale pass; *step alone* records nothing. Where there is a clip, each step is clipped.\n\n"
    )
    text += _cases(report["ratios"], lambda value: f"{value:.2f}")
    if "whole step ratios" in report:
        text += (
            "\nA whole training step with fused AdamW, watched without a policy, as a multiple of a bare one. Where a\n"
            "batch is little work, what is added is the fixed cost of a step, about a tenth of a millisecond:\n\n"
        )
        rows = [[case, f"{ratio:.4f}"] for case, ratio in report["whole step ratios"].items()]
        text += table(["", "watched / bare"], rows)
    return text + _source(report, "bench_step.py", name)


def instruction_counts(report: Report, name: str) -> str:
    """bench_step.py --instructions."""
    text = (
        "Instructions of one step on one thread, counted by valgrind, divided by those of torch's clip and step. They\n"
        "repeat where time does not, but a pass that waits for memory counts as little as one that does not.\n\n"
    )
    ratios = {case: {v: value["ratio"] for v, value in found.items()} for case, found in report["instructions"].items()}
    return text + _cases(ratios, lambda value: f"{value:.2f}") + _source(report, "bench_step.py --instructions", name)


def host_work(report: Report, name: str) -> str:
    """host_time.py."""
    ways = list(dict.fromkeys(row["way"] for row in report["rows"]))
    shown = {(row["tensors"], row["way"]): f"{row['instructions']:,} + {row['calls']:,}" for row in report["rows"]}
    sizes = list(dict.fromkeys(row["tensors"] for row in report["rows"]))
    return (
        "Bytecode instructions that Python executes in a step beyond fused AdamW's own, and its calls into C. What C\n"
        "does within a call is not counted, and no clock was asked. Torch's grows with the tensors. That of gradwatch\n"
        "does not, and is spread over some sixty functions: who steps, under which scaler, with what settings, on\n"
        "which gradients, and the row of it. What a Watch does between two steps is not in it: whether rows are due,\n"
        "or a param group has others. So below about 110 tensors a clip costs Python more than half of torch's, and\n"
        "below about 40 more than all of it. Of a device with Triton: all it does for kernels is counted; torch's\n"
        "call for norms, which makes a tensor of each, is one call into C.\n\n"
        + table(["tensors", *ways], [[str(size), *(shown[size, way] for way in ways)] for size in sizes])
        + f"\n`scripts/bench/host_time.py`, Python {report['python']}, torch {report['torch']}: "
        f"[JSON](measurements/{name}).\n"
    )


def host_clock(report: Report, name: str) -> str:
    """host_time.py --clock."""
    ways, sizes = (list(dict.fromkeys(row[key] for row in report["rows"])) for key in ("way", "tensors"))
    found = {(row["tensors"], row["way"]): row["microseconds"] for row in report["rows"]}
    shown = [
        [str(size), *(f"{found[size, way]:,.0f} ({found[size, way] / found[size, ways[0]]:.2f})" for way in ways)]
        for size in sizes
    ]
    return (
        "Microseconds of the processor in a step beyond fused AdamW's own, where what a GPU would be given costs\n"
        "nothing, and their ratio to torch's clip. What grows is that each is asked for its gradient and, from 4\n"
        "on, for its address, as one kernel takes the norms of all. What torch's own call for norms costs the host\n"
        "instead, a tensor of each norm, is not in it: see [below](#norms-of-all-layers-at-once).\n\n"
        + table(["tensors", *ways], shown)
        + _source(report, "host_time.py --clock", name)
    )


def launches(report: Report, name: str) -> str:
    """launches.py: of fp32 parameters."""
    rows = [row for row in report["rows"] if row["dtype"] == "float32"]
    ways, sizes = (list(dict.fromkeys(row[key] for row in rows)) for key in ("way", "tensors"))
    shown = {(row["tensors"], row["way"], row["triton"]): f"{row['launches']:,} + {row['measured']:,}" for row in rows}
    ours = [way for way in ways if way != "torch clip"]
    return (
        "Kernels beyond fused AdamW's own in a step on a GPU, and how many more where weights are measured, on one\n"
        "step in `every`. They follow from ATen's rules for CUDA 12, on tensors without values: no GPU was asked.\n"
        "A step reads nothing from the device. What it allocates in pieces of 64 KiB and more are AGC's norms and\n"
        "coefficients alone: one of each unit, as many as an embedding has rows, of the tensors that have a gradient\n"
        "in this step.\n\n"
        + table(
            ["tensors", "torch clip", *ours],
            [[str(n), *(shown.get((n, way, way in ours), "") for way in ("torch clip", *ours))] for n in sizes],
        )
        + "\nOne kernel takes the norms where no layer has more than 65,536 elements, as of the 1,000 here, else two;\n"
        "one finds what to divide by, where all share a coefficient.\n"
        "\nThe same by torch's calls for lists, as where there is no Triton:\n\n"
        + table(["tensors", *ours], [[str(n), *(shown.get((n, way, False), "") for way in ours)] for n in sizes])
        + "\nA launch of torch's kernel for norms takes at most 110 tensors and 320 blocks of 65,536 elements; one\n"
        "more is before them, and one for each 400 tensors and for each 128 bring the norms together. That is 4 up\n"
        "to 110 tensors and 21 million elements and 22 of 1,000 tensors, and nothing else in torch gives a norm of\n"
        "each tensor with fewer. For a coefficient of each layer small tensors share a launch by 64, and one spreads\n"
        "the coefficients: of 1,000 tensors 17, beside the 22, two for the coefficients and one that records them.\n"
        + f"\n`scripts/bench/launches.py`, torch {report['torch']}: [JSON](measurements/{name}).\n"
    )


def switches(report: Report, name: str) -> str:
    """bench_switches.py; its times only where nothing disturbed them."""
    text = (
        "What each [switch](switches.md) adds to a training step of a GPT-2 cut to a CPU's size, in percent of that\n"
        "step watched without it: *sampled*, the step that it samples; *others*, any other; *on average*, at its\n"
        "default pace. *Memory* is how much more tensors a sampled step holds at its peak, beside\n"
        f"{report['bytes_plain'] / 2**20:,.1f} MiB without a switch.\n\n"
    )
    return text + _of_switches(report) + _source(report, "bench_switches.py", name)


def _of_switches(report: Report) -> str:
    clock = report.get("clock_shares", {})
    head = ["switch", *(next(iter(clock.values())) if clock else ()), "memory"]
    rows = [
        [f"`{switch}`", *(f"{100 * share:.1f}" for share in clock.get(switch, {}).values()),
         f"{held['sampled'] / 2**20:,.1f} MiB"]
        for switch, held in report["bytes"].items()
    ]  # fmt: skip
    return table(head, rows)


BEFORE = "gpu_h200_before.json"


def on_gpu(report: Report, name: str) -> str:
    """gpu_run.py: what held, what was counted, and what was timed; where it came to nothing, what it found before."""
    before = {s: result["parts"] for s, result in json.loads((FOLDER / BEFORE).read_text())["sections"].items()}
    found = {section: result["parts"] for section, result in report["sections"].items()}
    left = [section for section, parts in found.items() if not parts and before.get(section)]
    found |= {section: before[section] for section in left}
    tests = Counter[str]()
    for part in found["tests"].values():
        tests.update({outcome: part.get(outcome, 0) for outcome in ("passed", "failed", "skipped")})
    asked = {question: part["held"] for question, part in found["probes"].items() if "held" in part}
    text = (
        f"All that needs a device, in {report['seconds'] / 60:.0f} minutes. Of the tests marked `gpu` "
        f"{tests['passed']} passed, {tests['failed']} failed and {tests['skipped']}\nwere skipped, where torch has no "
        "such kernel. What was claimed of a device, and whether it held:\n\n"
    )
    text += table(["claim", "held"], [[question, "yes" if held else "no"] for question, held in asked.items()])
    unfinished = [section for section, result in report["sections"].items() if result["error"]]
    if unfinished:
        text += f"\nIn this run {', '.join(f'`{s}`' for s in unfinished)} did not come to their end in their time.\n"
    if left:
        text += (
            f"What is said here of {' and '.join(f'`{s}`' for s in left)} is of the run before: "
            f"[JSON](measurements/{BEFORE}).\n"
        )
    text += (
        "\nKernels beyond fused AdamW's own, as the profiler counted them, and how many more where weights are "
        "measured.\nBy then what a step divides by came of three kernels, where there is one now, and the norms of "
        "small layers of two.\nBut for that they are those of the rules above, or one less or more:\n\n"
    )
    cases = found["probes"]["launches of the device"].items()
    counts = {tuple(case.split(", ", 1)): n for case, n in cases if isinstance(n, list)}
    ways = list(dict.fromkeys(way for _, way in counts))
    rows = {net: [f"{n} + {more - n}" for n, more in (counts[net, way] for way in ways)] for net, _ in counts}
    text += table(["", *ways], [[net, *cells] for net, cells in rows.items()])
    text += "\nMiB at the peak of a phase, above what is there between two; the first makes the optimizer's state:\n\n"
    held = found["memory"]
    text += table(["", "first", "later"], [[w, f"{m['first step']:.1f}", f"{m['later']:.1f}"] for w, m in held.items()])
    text += "\nMilliseconds of the training's thread for a drain of 100 rows:\n\n"
    rows = {layers: [f"{d['send ms']:.2f}", f"{d['hand over ms']:.3f}"] for layers, d in found["drains"].items()}
    text += table(["", "to send it", "to hand it over"], [[layers, *cells] for layers, cells in rows.items()])
    small = {net: part["ratios"] for net, part in found["small"].items() if "ratios" in part}
    if small:
        text += "\nThe optimizer phase of small nets with fused AdamW, as [above](#optimizer-phase):\n\n"
        text += _cases(small, "{:.2f}".format)
    text += "\n" + _steps_on_gpu({**found["gpt2-124m"], **found["gpt-1b"]})
    rows = [[bar["what"], f"{bar['found']:.4f}", "yes" if bar["held"] else "**no**"] for bar in report["bars"]]
    text += "\nWhat was promised of GPT-2 124M:\n\n" + table(["", "found", "held"], rows)
    for part in found["switches"].values():
        text += (
            "\nWhat a [switch](switches.md) adds there to a step of two micro-batches of 4 x 1,024 tokens, in percent "
            "of it, as [above](#switches). The host\nis what such a step waits for, and a switch gives it more to ask "
            "for:\n\n"
        )
        text += _of_switches(part)
    return text + _source(found["machine"]["about"], "gpu", name)


def _steps_on_gpu(parts: Report) -> str:
    text = (
        "Training steps of GPTs in bf16 autocast with fused AdamW: the optimizer's *phase* in a row, divided by that "
        "of torch's\nclip and step, and the *whole* step, divided by one without clip and record, the median of rounds "
        "and the least and\nthe most of one. Where a step is little work for the device it waits for the host, whose "
        "pace varies. Nothing waited\nfor the device in any.\n\n"
    )
    rows = []
    for case, figures in parts.items():
        for way, whole in figures.get("to bare", {}).items():
            phase = f"{figures['phase'][way]:.3f}" if "phase" in figures else ""
            rounds = figures["to bare, each round"][way]
            rows.append([case, way, phase, f"{whole:.4f}", f"{min(rounds):.4f} to {max(rounds):.4f}"])
    text += table(["", "", "phase", "whole", "of a round"], rows)
    kernels = parts.get("by kernels", {})
    if "device ms" in kernels:
        least = kernels["least, to torch's clip + step"]
        text += (
            f"\nThe kernels of the norms and of a step that scales, without anything else, take {least:.2f} of torch's "
            "norms, multiplication\nand step: no clip is faster whose step is fused AdamW's.\n"
        )
    return text


def trainings_on_gpu(report: Report, name: str) -> str:
    """The section `scenarios` of gpu_run.py."""
    trained = report["sections"]["scenarios"]["parts"]
    others = ", ".join(f"`{name}`" for name, part in trained.items() if not part["held"])
    return (
        f"Of {len(trained)} trainings of the rules' own suite {sum(part['held'] for part in trained.values())} got the "
        f"findings on a device that they get on a CPU, all but\n{others}.\n"
        + _source(report["sections"]["machine"]["parts"]["about"], "gpu", name)
    )


def norms_at_once(report: Report, name: str) -> str:
    """Parts of two runs of gpu_run.py, before and after norms were taken at once."""
    runs = report["runs"]
    text = (
        "GPT-2 124M on batches of 4 x 1,024 tokens: with torch's calls for lists, as where there is no Triton, and "
        "with one kernel\nfor all layers. torch makes a tensor of each norm: the device waited for the host. Each "
        "figure is the optimizer's phase\nover that of torch's clip and step of the same run:\n\n"
    )
    ways = [way for way in runs["torch's calls for lists"]["phase"] if way != "torch clip + step"]
    rows = [[way, *(f"{run['phase'][way]:.3f}" for run in runs.values())] for way in ways]
    text += table(["", *runs], rows) + "\nKernels of ten phases, one of which is measured:\n\n"
    rows = [
        [way, *(str(run["launches"][way]["kernels"]) for run in runs.values())] for way in ("torch clip + step", *ways)
    ]
    return text + table(["", *runs], rows) + _source(report["about"], "gpu --only gpt2-124m", name)


def side_by_side(report: Report, name: str) -> str:
    """bench_peers.py: one table a case."""
    text = (
        "Whole training steps of a small batch, recorded at every step, each way in a process of its own that runs\n"
        "while the others are stopped. What each records:\n\n"
    )
    text += table(["way", "records"], [[f"`{way}`", what] for way, what in report["ways"].items()])
    text += "".join(f"\n`{way}` is not in the run: {why}.\n" for way, why in report["absent"].items())
    text += (
        "\n*Step* is the whole step against the uninstrumented one. *Added* is the time that recording adds to a loop\n"
        "that clips with torch's `clip_grad_norm_` (what does not clip, and `clip_grad_norm_` itself: to one that\n"
        "does not), in milliseconds a step; *after backward* is the same without the noise of forward and backward.\n"
        "*Times gradwatch* divides what clipping and recording cost together, above the uninstrumented step, by that\n"
        "of `gradwatch, files`; *recording alone* leaves the clip out. *CPU* is the processor time of a step with all\n"
        "helper processes, in milliseconds. The JSON has the exact definitions.\n"
    )
    head = ["way", "step", "added", "after backward", "times gradwatch", "recording alone", "CPU"]
    for case, ways in report["results"].items():
        rows = [
            [
                f"`{way}`",
                _number(found.get("to_bare"), "{:.2f}"),
                _number(found.get("added_ms"), "{:.2f}"),
                _number(found.get("added_phase_ms"), "{:.2f}"),
                _number(found.get("times_gradwatch_over_bare"), "{:.1f}"),
                _number(found.get("times_gradwatch_phase", found.get("times_gradwatch")), "{:.1f}"),
                _number(found.get("cpu_ms"), "{:.1f}"),
            ]
            for way, found in ways.items()
        ]
        text += f"\n### {case}\n\n" + table(head, rows)
    return text + _source(report, "bench_peers.py", name)


def start_up(report: Report, name: str) -> str:
    """bench_startup.py."""
    text = (
        "Seconds from the start of an interpreter to its end, or until its training took its first step. `train.py`\n"
        "takes five steps, so it ends before the courier has imported MLflow: nothing waits for that.\n\n"
    )
    text += table(["command", "seconds"], [[f"`{c}`", f"{s:.2f}"] for c, s in report["seconds"].items()])
    text += (
        "\nWhat gradwatch adds. torch imports its compiler when an optimizer is made, which takes seconds of its own;\n"
        "`gradwatch.watch` needs it too and is held against that. Of so few rounds, tenths of a second are noise:\n\n"
    )
    text += table(["", "seconds"], [[what, f"{s:.2f}"] for what, s in report["added"].items()])
    return text + _source(report, "bench_startup.py", name)


def plain(script: str) -> Callable[[Report, str], str]:
    """A benchmark whose JSON is its table: every number with its name."""
    about = {"what", "machine", "load", "threads", "python", "torch", "gradwatch", "rounds", "steps"}

    def section(report: Report, name: str) -> str:
        what = str(report.get("what", "what was measured"))
        rows = [[n, v] for n, v in _flat({k: v for k, v in report.items() if k not in about})]
        return f"{what[:1].upper()}{what[1:]}.\n\n" + table(["", ""], rows) + _source(report, script, name)

    return section


SECTIONS: list[tuple[str, str, str, Callable[[Report, str], str]]] = [
    ("Optimizer phase", "scripts/bench/bench_step.py", "bench_step_cpu.json", optimizer_phase),
    ("Instructions", "scripts/bench/bench_step.py --instructions", "bench_instructions_cpu.json", instruction_counts),
    ("Python's work", "scripts/bench/host_time.py", "host_work.json", host_work),
    ("The host's time", "scripts/bench/host_time.py --clock", "host_time_cpu.json", host_clock),
    ("Launches", "scripts/bench/launches.py", "launches_fake_cuda.json", launches),
    ("Switches", "scripts/bench/bench_switches.py", "bench_switches_cpu.json", switches),
    ("Side by side", "scripts/bench/bench_peers.py", "bench_peers_cpu.json", side_by_side),
    ("Writing", "scripts/bench/bench_store.py", "bench_store_cpu.json", plain("bench_store.py")),
    ("Reports of long histories", "scripts/bench/bench_report.py", "bench_report_cpu.json", plain("bench_report.py")),
    ("A large report in a browser", "scripts/bench/bench_page.py", "bench_page_cpu.json", plain("bench_page.py")),
    ("Start-up", "scripts/bench/bench_startup.py", "bench_startup_cpu.json", start_up),
    ("On a GPU", "scripts/bench/gpu", "gpu_h200.json", on_gpu),
    ("Trainings on a GPU", "scripts/bench/gpu --only scenarios", "gpu_h100.json", trainings_on_gpu),
    ("Norms of all layers at once", "scripts/bench/gpu --only gpt2-124m", "gpu_h100_norms.json", norms_at_once),
]


# ------------------------------------------------------------------------------------------------------------- helpers


def _cases(ratios: Mapping[str, Mapping[str, float]], shown: Callable[[float], str]) -> str:
    head = list(next(iter(ratios.values())))
    return table(["", *head], [[case, *(shown(found[v]) for v in head)] for case, found in ratios.items()])


def _source(report: Report, script: str, name: str) -> str:
    """Which script measured where, with what."""
    shapes = {"threads": "{} threads", "torch": "torch {}", "gradwatch": "gradwatch {}", "rounds": "{} rounds",
              "load": "load {}"}  # fmt: skip
    facts = [report.get("machine", "a machine without a name")]
    facts += [shape.format(report[key]) for key, shape in shapes.items() if key in report]
    return f"\n`scripts/bench/{script}` on {', '.join(facts)}: [JSON](measurements/{name}).\n"


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}, {key}" if name else str(key))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{name} {i + 1}")
    else:
        yield name, f"{value:,.4g}" if isinstance(value, float) else str(value)


def _number(value: float | None, shape: str) -> str:
    return "" if value is None else shape.format(value)


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(line)} |\n" for line in [head, *rows]]
    return lines[0] + "|" + "---|" * len(head) + "\n" + "".join(lines[1:])


if __name__ == "__main__":
    print(page(), end="")
