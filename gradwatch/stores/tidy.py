"""What a writer that was killed left behind in its run's folder, and how the next one cleans up."""

from __future__ import annotations

from pathlib import Path

from gradwatch.stores.files import MANIFEST, TABLES, last_whole_part, list_parts


def tidy(folder: Path) -> None:
    """Remove half-written files, parts that a merged one holds, and the last part of a table that lacks its fellow.

    Only for the writer, who has the folder alone.
    """
    whole = last_whole_part(folder)
    for path in folder.glob(f".{MANIFEST}.*.tmp"):
        path.unlink()
    for table in TABLES:
        parts = list_parts(folder / table)
        kept = {part.path for part in parts if whole is None or part.last <= whole}
        for path in [*(folder / table).glob(".part-*.tmp"), *(folder / table).glob("part-*.parquet")]:
            if path not in kept:
                path.unlink()
