"""`gradwatch demo`: two small trainings under many policies, with everything gradwatch makes of them in one folder."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradwatch.errors import RunError

if TYPE_CHECKING:
    from rich.console import Console

    from gradwatch.launcher.sweep import Job

WORKLOADS = ("mlp", "rnn")
MARKER = ".gradwatch-demo"  # a folder with this file in it was made by a demo; it names the options of a finished one
MADE = ("mlflow.db*", "mlartifacts", "runs", "report*.html")


@click.command()
@click.option("--data", metavar="DIR", type=click.Path(path_type=Path), help="A folder with MNIST's four idx files, a "
              "text in input.txt, or both in mnist/ and tinyshakespeare/. [default: what is installed]")  # fmt: skip
@click.option("--out", metavar="DIR", default="gradwatch-demo", show_default=True, type=click.Path(path_type=Path),
              help="The folder that gets everything.")  # fmt: skip
@click.option("--workload", type=click.Choice([*WORKLOADS, "all"]), default="all", show_default=True,
              help="Which trainings to run.")  # fmt: skip
@click.option("--quick", is_flag=True, help="One seed and few steps: shows what it does, not which policy wins.")
@click.option("--force", is_flag=True, help="Replace an earlier demo in that folder.")
def demo(data: Path | None, out: Path, workload: str, quick: bool, force: bool) -> None:
    """Train two small networks under several policies and compare them.

    An MLP learns to read digits at a healthy and at a too-high learning rate, under eight policies; a character RNN
    learns a text at a learning rate that it survives only when clipped. Three seeds each, in a few minutes on two
    cores. The folder then holds the recorded runs, an MLflow store with all of them, and reports.

    \b
    Example:
      gradwatch demo
      gradwatch demo --data ~/data --out /tmp/demo --workload mlp
    """  # noqa: D301  (click reads the backspace)
    from rich.console import Console

    from gradwatch.launcher.demo.jobs import FINDERS, demo_jobs

    if importlib.util.find_spec("mlflow") is None:
        raise RunError("the demo shows its runs in MLflow, which is not installed: pip install 'gradwatch[demo]'")
    if data is not None and not data.is_dir():
        raise RunError(f"--data {data}: there is no such folder")
    workloads = WORKLOADS if workload == "all" else (workload,)
    jobs = demo_jobs(workloads, data, out / "runs", quick)
    for name in [name for name in workloads if data is not None and FINDERS[name](data) is None]:
        click.echo(f"{name}: there is nothing for it in {data}; it trains on what is installed")
    console, asked = Console(), f"{data} {workload} {quick}"
    if not force and finished(out) == asked:
        click.echo(f"This demo was run before; here is what it left in {out}. --force trains again.")
        show(jobs, out, console)
        return
    with claim(out, force or finished(out) is None):
        try:
            train(jobs, out, console)
        except KeyboardInterrupt:
            click.echo(f"Stopped. gradwatch sync {out / 'runs'} delivers what was recorded so far.", err=True)
            raise
        show(jobs, out, console)
        (out / MARKER).write_text(asked)


def finished(out: Path) -> str | None:
    """The options of the finished demo in `out`; None when there is none, or one that was stopped."""
    marker = out / MARKER
    return (marker.read_text() or None) if marker.is_file() else None


def claim(out: Path, force: bool) -> AbstractContextManager[Any]:
    """Make `out` an empty folder of this demo alone, until the returned lock is left.

    What an earlier demo made is removed with `force`; nothing else ever is.

    Raises:
        RunError: it cannot be written, holds an earlier demo or something else, or another demo is at work in it.
    """
    from filelock import FileLock, Timeout

    try:
        if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
            raise RunError(f"{out} holds files that no demo made: pass --out a new folder")
        out.mkdir(parents=True, exist_ok=True)
        (out / MARKER).touch()
        lock = FileLock(out / f"{MARKER}.lock").acquire(timeout=0)
        made = [path for pattern in MADE for path in out.glob(pattern)]
        if made and not force:
            raise RunError(f"{out} holds another demo: gradwatch ui --store {out} opens it, --force replaces it")
        (out / MARKER).write_text("")
        for path in made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        (out / "runs").mkdir()
    except Timeout:
        raise RunError(f"another demo is at work in {out}: wait for it, or pass --out another folder") from None
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror}; pass --out a folder you can write to") from error
    return lock


def train(jobs: Sequence[Job], out: Path, console: Console) -> None:
    """Run the jobs and their delivery to `out/mlflow.db`, with a progress bar for each."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from gradwatch.launcher.demo.jobs import WORKERS, run_jobs
    from gradwatch.launcher.demo.summary import MEANT
    from gradwatch.report.terminal import print_text

    many = f"{len(jobs)} trainings, {WORKERS} at a time; what each prints is in its folder below {out / 'runs'}."
    print_text(f"{many}\n{MEANT}")
    columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    counts = run_jobs(jobs, out / "runs", store(out))
    with closing(counts), Progress(*columns, console=console) as progress:
        training = progress.add_task("training", total=len(jobs))
        delivery = progress.add_task("delivered to MLflow", total=len(jobs))
        for trained, delivered in counts:
            progress.update(training, completed=trained)
            progress.update(delivery, completed=delivered)


def show(jobs: Sequence[Job], out: Path, console: Console) -> None:
    """The tables, and where to look next.

    Raises:
        RunError: not all runs are in MLflow.
    """
    from gradwatch.launcher.demo.jobs import delivered
    from gradwatch.launcher.demo.summary import said, short_columns, sick_runs, write_reports
    from gradwatch.report.comparison_table import conclusion
    from gradwatch.report.terminal import comparison_table, print_shown, print_text
    from gradwatch.storage.delivery_cursor import read_cursor
    from gradwatch.storage.folder import read_manifest
    from gradwatch.storage.shared_folder import run_folders

    with console.status("writing the reports"):
        reports = write_reports(out)
    for report in reports.values():
        click.secho(f"\n{report.title}", bold=True)
        print_shown(comparison_table(short_columns(report)))
        print_text("\n".join(["", *map(conclusion, report.winners)]))
    print_text("\n".join(["", *said(reports.values())]))
    names = {read_manifest(folder).name: folder for folder in run_folders(out / "runs")}
    first = [names[run.name] for run in sick_runs(reports.values())[:1] if run.name in names]
    urls = dict.fromkeys(read_cursor(folder).get("url") for folder in run_folders(out / "runs"))
    click.echo("\nWhere to look:")
    for folder in first:
        click.echo(f"first:      {shlex.join([*this_command(), 'show', str(folder)])}")
    click.echo(f"Report:     {(out / 'report.html').resolve()}")
    click.echo(f"MLflow UI:  {shlex.join([*this_command(), 'ui', '--store', str(out)])}")
    for url in filter(None, urls):
        click.echo(f"  then:     {url}")
    missing = len(jobs) - delivered(out / "runs")
    if missing:
        raise RunError(
            f"{missing} runs are not in MLflow yet: gradwatch sync {out / 'runs'} delivers them "
            f"({out / 'runs/courier.log'} says why they were not)"
        )


def this_command() -> list[str]:
    """What to type for `gradwatch`, also where its environment is not active."""
    return ["gradwatch"] if shutil.which("gradwatch") else [sys.executable, "-m", "gradwatch"]


def store(out: Path) -> str:
    """The tracking URI of the demo's store."""
    return f"sqlite:///{(out / 'mlflow.db').resolve()}"
