"""The package as it is published: what is in it, what it says of itself, and that it works where it is installed."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import ExceptionGroup, Metadata
from packaging.specifiers import SpecifierSet

import gradwatch

try:
    import tomllib
except ImportError:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def run(*command, **options):
    """What a command says; one that fails fails the test, with what it said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=200, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


# ------------------------------------------------------------------------------------------ what it says of itself


def test_the_citation_is_that_of_the_package():
    assert CITATION["version"] == gradwatch.__version__
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["abstract"] == PROJECT["description"]
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["authors"] == PROJECT["authors"]


def against_the_citation_format(file):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format", file]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout


def test_the_citation_is_of_the_citation_file_format(tmp_path):
    assert against_the_citation_format(ROOT / "CITATION.cff").startswith("ok")
    (tmp_path / "CITATION.cff").write_text(yaml.safe_dump({**CITATION, "licence": "MIT"}))
    assert "'licence' was unexpected" in against_the_citation_format(tmp_path / "CITATION.cff")


def test_the_pythons_are_those_that_are_promised_and_looked_for():
    """The oldest is that of `requires-python`; all are what the scripts make their environment with."""
    told = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    looked_for = re.search(r"for PYTHON in python3 (.*); do", (ROOT / "scripts" / "_venv.sh").read_text())[1]
    assert told == looked_for.replace("python", "").split()[::-1]
    promised = SpecifierSet(PROJECT["requires-python"])
    assert all(version in promised for version in told)
    assert f"3.{int(told[0].removeprefix('3.')) - 1}" not in promised


# ------------------------------------------------------------------------------------------ what it is made of


def build(source, target, *kinds):
    """Build `kinds` (`-t wheel`, `-t sdist`; both without) of a source tree; the files by their kind."""
    run(sys.executable, "-m", "hatchling", "build", *kinds, "-d", target, cwd=source)
    return {"sdist" if file.suffix == ".gz" else "wheel": file for file in target.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist and the wheel of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def wheel_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "dist-info" not in name}


@pytest.mark.slow
def test_the_metadata_is_what_an_index_accepts(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        text = archive.read(f"gradwatch-{gradwatch.__version__}.dist-info/METADATA")
    said = Metadata.from_email(text, validate=True)
    assert (said.description_content_type, said.license_expression) == ("text/markdown", "MIT")
    assert said.description.startswith("# gradwatch")
    with pytest.raises(ExceptionGroup, match="metadata"):
        Metadata.from_email(text.replace(b"License-Expression: MIT", b"License-Expression: Mine"), validate=True)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    kept = {f"gradwatch/{p.relative_to(ROOT / 'gradwatch')}" for p in (ROOT / "gradwatch").rglob("*") if p.is_file()}
    kept = {name for name in kept if "__pycache__" not in name}
    pages = {f"gradwatch/{p.relative_to(ROOT)}" for p in (ROOT / "docs" / "findings").rglob("*") if p.is_file()}
    assert set(wheel_files(built["wheel"])) == kept | pages
    assert "gradwatch/py.typed" in kept


@pytest.mark.slow
def test_the_sdist_makes_the_same_wheel(built, tmp_path):
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert {"CITATION.cff", "CHANGELOG.md", "LICENSE", "README.md", "docs", "tests"} <= {
        p.name for p in source.iterdir()
    }
    again = build(source, tmp_path / "dist", "-t", "wheel")
    assert wheel_files(again["wheel"]) == wheel_files(built["wheel"])


@pytest.mark.slow
def test_what_the_dockerfile_copies_is_enough_to_build(built, tmp_path):
    (tmp_path / "src").mkdir()
    for line in re.findall(r"^COPY (.* /src/.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        *names, place = line.split()
        for name in names:
            if (ROOT / name).is_dir():  # its content goes there, not itself
                shutil.copytree(ROOT / name, tmp_path / place[1:])
            else:
                shutil.copy(ROOT / name, tmp_path / place[1:])
    made = build(tmp_path / "src", tmp_path / "dist", "-t", "wheel")
    assert wheel_files(made["wheel"]) == wheel_files(built["wheel"])


# ------------------------------------------------------------------------------------------ where it is installed


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The Python of a fresh environment that the wheel was installed in. What gradwatch needs is this environment's."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "-q", "--disable-pip-version-check", "install"]
    run(*pip, "--no-index", "--no-deps", built["wheel"])
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    here = run(sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(site) / "needed.pth").write_text(
        here
    )  # after the wheel's own folder, so that the wheel's gradwatch comes first
    return python


def elsewhere():
    """The environment of a stranger: nothing of this tree on Python's path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.mark.slow
def test_the_quickstart_as_printed_runs_where_the_wheel_is_installed(installed, tmp_path):
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Quickstart\n")[2].partition("\n## ")[0]
    code = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "train.py").write_text(code)
    options = {"cwd": tmp_path, "env": {**elsewhere(), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}}
    at = run(installed, "-c", "import gradwatch; print(gradwatch.__file__)", **options)
    assert Path(at).is_relative_to(installed.parents[1])
    run(installed, "train.py", **options)
    program = installed.with_name("gradwatch")
    shown = [line.split()[2:] for line in section.splitlines() if line.startswith("$ gradwatch") and "ui" not in line]
    assert shown == [["show", "latest"], ["report", "latest"]]
    said = [run(program, *words, **options) for words in shown]
    assert re.search(r"^steps +200\b", said[0], re.MULTILINE)
    assert list(tmp_path.glob("*.html"))
