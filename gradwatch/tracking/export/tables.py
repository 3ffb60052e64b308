"""A run's two tables as plain files: every layer and every step."""

from __future__ import annotations

from pathlib import Path

from gradwatch.sanitize import formula_free
from gradwatch.storage.encoding import sampled_table, write_part
from gradwatch.storage.folder import TABLES, put
from gradwatch.tracking.export.run_export import RunExport


def write_csv(run: RunExport, out: Path) -> list[str]:
    """`steps.csv`, one row per step, `layers.csv`, one row per step and layer, and those of sampled steps.

    Numbers are written so that they are read back to the bit; a cell without a value is empty.
    """
    folder = out / run.name
    folder.mkdir(exist_ok=True)
    frames = {"steps": run.whole.steps_frame(), "layers": run.whole.to_frame()}
    frames |= {table: sampled_table(run.whole, table).to_pandas() for table in run.whole.sampled}
    for table, frame in frames.items():
        texts = [name for name in ("optimizer", "layer", "module") if name in frame]
        frame[texts] = frame[texts].astype(str).map(formula_free)
        temporary = folder / f".{table}.csv.tmp"
        frame.rename(columns=formula_free).to_csv(temporary, index=False)
        put(temporary, folder / f"{table}.csv")
    return [f"{folder / 'steps.csv'} and layers.csv: {_counted(run)}"]


def write_parquet(run: RunExport, out: Path) -> list[str]:
    """The same tables as `steps.parquet`, ...: the columns of a run folder's parts, in one file each."""
    folder = out / run.name
    folder.mkdir(exist_ok=True)
    for table in (*TABLES, *run.whole.sampled):
        temporary = folder / f".{table}.parquet.tmp"
        write_part(temporary, table, run.whole)
        put(temporary, folder / f"{table}.parquet")
    return [f"{folder / 'steps.parquet'} and layers.parquet: {_counted(run)}"]


def _counted(run: RunExport) -> str:
    return f"{len(run.whole):,} steps, {len(run.whole.by_layer) * len(run.whole.layers):,} rows of layers"
