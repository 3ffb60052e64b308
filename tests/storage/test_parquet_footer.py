"""What a part says of itself, read without pyarrow: the same as pyarrow reads, and no footer ends the process."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from make_run import make_run

from gradwatch import sanitize
from gradwatch.storage import parquet, parquet_footer
from gradwatch.storage.folder import list_parts


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_it_is_what_pyarrow_reads(tmp_path, compression, size):
    rng = np.random.default_rng(0)
    names = pa.array(rng.choice(["a", "b"], 500)).dictionary_encode()
    table = pa.table({"step": np.arange(-250, 250), "x": rng.random(500), "name": names, "b": rng.random(500) > 0.5})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=size, compression=compression)
    metadata = pq.read_metadata(tmp_path / "x.parquet")
    groups = parquet_footer.row_groups(tmp_path / "x.parquet")
    assert len(groups) == metadata.num_row_groups
    for i, group in enumerate(groups):
        theirs = metadata.row_group(i)
        columns = [theirs.column(j) for j in range(theirs.num_columns)]
        assert group.rows == theirs.num_rows
        assert [(c.values, c.size) for c in group.columns] == [
            (c.num_values, c.total_uncompressed_size) for c in columns
        ]
        assert group.columns[0].largest == columns[0].statistics.max


def test_a_file_without_row_groups(tmp_path):
    pq.ParquetWriter(tmp_path / "x.parquet", pa.schema([("a", pa.int64())])).close()
    assert parquet_footer.row_groups(tmp_path / "x.parquet") == []


def test_a_description_of_very_many_things_is_not_read(tmp_path, monkeypatch):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    monkeypatch.setattr(parquet_footer, "MAX_FOOTER_VALUES", 10)
    with pytest.raises(ValueError, match="more than 10 things"):
        parquet_footer.row_groups(tmp_path / "x.parquet")
    assert sanitize.MAX_FOOTER_VALUES > 1000


@pytest.mark.parametrize(
    "said", [b"", b"\x19\xfc" + b"\xff" * 20, b"\x1c" * 5000, b"\x1d\x00", b"\x49\x1c\x16\x02\x00\x00", b"\x18\x7f"]
)
def test_a_description_that_is_none(tmp_path, said):
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + said + len(said).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match=r"cannot be understood|is not known|more than"):
        parquet_footer.row_groups(tmp_path / "x.parquet")


ASK = "import sys, pyarrow.parquet as p; p.read_metadata(sys.argv[1]).row_group(0).column(4)"
READ = "import sys; from gradwatch import open_history; print(len(open_history(sys.argv[1], 10**6)))"


@pytest.mark.parametrize(("code", "lives"), [(READ, True), (ASK, False)], ids=["gradwatch", "pyarrow"])
def test_size_statistics_that_do_not_fit_do_not_end_the_process(tmp_path, code, lives):
    """A column that is said to be REQUIRED has no use for the histogram of an OPTIONAL one."""
    folder = make_run(tmp_path, steps=30, blocks=1)
    path = list_parts(folder / "layers")[0].path
    said = path.read_bytes().replace(b"%\x02\x18\tgrad_norm", b"%\x00\x18\tgrad_norm")
    assert said != path.read_bytes()
    path.write_bytes(said)
    done = subprocess.run(
        [sys.executable, "-c", code, folder if lives else path], check=False, capture_output=True, text=True
    )
    if lives:
        assert (done.returncode, done.stdout) == (0, "30\n"), done.stderr
    elif done.returncode >= 0:
        pytest.skip("this pyarrow does not end the process: it could be asked instead of `footer`")


def test_a_number_that_no_name_has_is_named(tmp_path):
    """Arrow hands such a dictionary over as it is."""
    column = pa.DictionaryArray.from_arrays(pa.array([0, 7], pa.int32()), pa.array(["a"]), safe=False)
    with pytest.raises(ValueError, match="7"):
        parquet._codes(pa.chunked_array([column]), 10)
