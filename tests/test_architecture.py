"""The house: ten packages and a few loose files, each on its floor. Every test lists all that offends."""

import ast
import functools
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from gradwatch.recording.signals import BUSY

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gradwatch"
# From the ground up: what stands in a line imports only from the lines above it.
FLOORS = """
    errors formulas formatting table _version
    history sanitize policies
    measure storage
    analysis
    recording report
    adapters tracking
    open_run
    __init__
    launcher
    cli
    __main__
"""
FLOOR = {room: number for number, rooms in enumerate(FLOORS.split("\n")) for room in rooms.split()}
SHARED = {"errors", "formulas", "formatting", "table", "history", "sanitize", "policies", "storage"}
READ_SIDE = {*SHARED, "analysis", "report", "tracking", "open_run", "cli"}
TRAIN_SIDE = {"measure", "recording", "adapters"}
MAY_IMPORT_MLFLOW = {"tracking.client", "tracking.reader", "tracking.refusals"}

SOURCES = {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}
FILES = {path: ast.parse(text) for path, text in SOURCES.items()}
MODULES = {path.removesuffix(".py").replace("/", "."): tree for path, tree in FILES.items()}


def room(module):
    """The package, or the loose file, that a module belongs to."""
    return module.split(".")[0]


@functools.cache
def imports(tree):
    """Every module or name that a file imports, wherever the import stands; what is only for type checkers is not."""
    blocks = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    typing_only = {id(n) for block in blocks for child in block.body for n in ast.walk(child)}
    names = []
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the floor"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def own_imports(tree):
    """The modules of gradwatch that a file imports, without the `gradwatch.` before them; `__init__` is the face."""
    for name in imports(tree):
        first, _, rest = name.partition(".")
        if first == "gradwatch":
            parent = rest.rpartition(".")[0]
            found = [m for m in (rest, f"{rest}.__init__", parent, f"{parent}.__init__") if m in MODULES]
            yield found[0] if found else "__init__"


@functools.cache
def arrows():
    """By module, the modules of gradwatch that it imports."""
    return {module: set(own_imports(tree)) - {module} for module, tree in MODULES.items()}


def test_the_root_holds_few_loose_files():
    assert len([module for module in MODULES if "." not in module]) <= 10
    assert not [path for path in FILES if path.count("/") > 2], "two levels of folders at most"


def test_every_room_has_a_floor_and_imports_only_from_floors_below():
    assert {room(module) for module in MODULES} == set(FLOOR)
    up = [
        f"{module} imports {other}"
        for module, others in arrows().items()
        for other in others
        if room(module) != room(other) and FLOOR[room(other)] >= FLOOR[room(module)]
    ]
    assert up == []


def test_no_circle_anywhere():
    try:
        list(TopologicalSorter(arrows()).static_order())
    except CycleError as error:
        pytest.fail(f"these import each other: {' -> '.join(error.args[1])}")


def test_the_read_side_never_imports_torch():
    assert [m for m in MODULES if room(m) in READ_SIDE and "torch" in heavy(MODULES[m])] == []


def test_mlflow_is_imported_in_two_files():
    assert {m for m, tree in MODULES.items() if "mlflow" in heavy(tree)} == MAY_IMPORT_MLFLOW


def heavy(tree):
    return {name.split(".")[0] for name in imports(tree)}


def test_the_train_side_shares_only_the_waist():
    """Of the diagnosis a trainer knows the rules: `halt_on` asks the one of non-finite gradients."""
    other = [
        f"{module} imports {name}"
        for module, names in arrows().items()
        for name in names
        if room(module) in TRAIN_SIDE
        and room(name) not in TRAIN_SIDE | SHARED
        and not name.startswith("analysis.rules")
    ]
    assert other == []


def test_what_a_signal_must_not_cut_in_two_is_named_as_it_is_called():
    assert [name for name in BUSY if name.removeprefix("gradwatch.") not in MODULES] == []


# What turns data into code, or a string into a command line.
DANGEROUS_MODULES = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "xml", "jsonpickle"}
DANGEROUS_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "subprocess.getoutput",
    "subprocess.getstatusoutput", "pd.read_pickle", "torch.load",
}  # fmt: skip
# The script that the user asks to run is code: `launcher.script` compiles it, `launcher.run` executes it, and adds an
# entry to what multiprocessing itself pickles for a process that this script spawns: no data of others.
ALLOWED_CALLS = {("launcher/run.py", "exec"), ("launcher/script.py", "compile")}


def called(tree):
    """Each call in a file with its name as written: `os.system`, `open`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def code_of_data(path, tree):
    """What in a file would run data as code, or a string in a shell."""
    found = [f"imports {m}" for m in sorted(heavy(tree)) if m in DANGEROUS_MODULES]
    for name, call in called(tree):
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name == "torch.load" and words.get("weights_only") == "True":
            continue
        if name in DANGEROUS_CALLS and (path, name) not in ALLOWED_CALLS:
            found.append(f"calls {name}")
        if words.get("shell", "False") != "False" or words.get("allow_pickle", "False") != "False":
            found.append(f"calls {name} with a shell or a pickle")
    return found


def test_data_is_never_run():
    assert {path: found for path, tree in FILES.items() if (found := code_of_data(path, tree))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from yaml import load", "eval('1')", "exec(text)", "os.system(name)", "torch.load(path)",
        "torch.load(path, weights_only=False)", "subprocess.run(text, shell=True)", "np.load(f, allow_pickle=True)",
        "def f():\n    import marshal", "subprocess.Popen(text, shell=flag)",
    ],
)  # fmt: skip
def test_what_would_run_data_is_seen(code):
    assert code_of_data("history.py", ast.parse(code))


@pytest.mark.parametrize(("path", "name"), sorted(ALLOWED_CALLS))
def test_the_exceptions_are_needed(path, name):
    assert [n for n, _ in called(FILES[path])].count(name) == 1


def test_gradients_are_switched_off_in_one_way():
    """That a Ctrl-C cannot leave in force. The demo's scripts are trainings as anybody writes them."""
    switches = {"torch.no_grad", "torch.set_grad_enabled", "torch.inference_mode", "torch._C._set_grad_enabled"}
    found = {
        path
        for path, tree in FILES.items()
        if any(isinstance(n, ast.Attribute) and ast.unparse(n) in switches for n in ast.walk(tree))
    }
    assert {path for path in found if not path.startswith("launcher/demo/")} == {"measure/autograd.py"}


def test_a_share_is_written_in_one_way():
    """By `formatting.percent`, never as `{share:.0%}`, which has no space and rounds to 0 % and 100 %."""
    specs = [
        f"{path}:{node.lineno}"
        for path, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue) and node.format_spec and ast.unparse(node.format_spec).endswith("%'")
    ]
    assert specs == []


def test_what_is_made_says_where_and_of_which_dtype():
    """Else both are what the training's set_default_device() and set_default_dtype() say."""
    made = ("empty", "zeros", "ones", "full", "tensor", "as_tensor", "rand", "randn", "linspace")
    wanted = {**{f"torch.{name}": {"device", "dtype"} for name in made}, "torch.arange": {"device"}}
    missing = [
        f"{path}:{call.lineno}"
        for path, tree in FILES.items()
        for name, call in called(tree)
        if not wanted.get(name, set()) <= {word.arg for word in call.keywords} and not path.startswith("launcher/demo/")
    ]
    assert missing == []


def test_reading_starts_without_torch_and_mlflow():
    """`gradwatch.adapters` too: it is only the place of its modules, and none of the frameworks needs the others."""
    names = [
        f"gradwatch.{m.removesuffix('.__init__')}"
        for m in MODULES
        if room(m) in READ_SIDE and m not in MAY_IMPORT_MLFLOW
    ]
    code = f"import {', '.join(['gradwatch', 'gradwatch.adapters', *names])}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert {"torch", "mlflow", "lightning", "transformers", "accelerate"} & set(done.stdout.split()) == set()


def test_files_and_functions_stay_small_enough_to_read_in_one_go():
    large = [f"{path} has {text.count(chr(10))} lines" for path, text in SOURCES.items() if text.count("\n") > 330]
    for path, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = ast.get_docstring(node, clean=False) or ""
                body = node.end_lineno - node.lineno - doc.count("\n")
                large += [f"{path}: {node.name} has {body} lines"] if body > 60 else []
    assert large == []


def test_no_two_test_files_have_one_name():
    """Where both are collected, pytest cannot import the second."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


def test_every_file_says_what_it_is_for():
    assert [path for path, tree in FILES.items() if not ast.get_docstring(tree)] == []


def test_pyproject_is_the_only_configuration_of_the_tools():
    strays = {"setup.py", "setup.cfg", "tox.ini", "pytest.ini", "mypy.ini", ".ruff.toml", "ruff.toml", ".flake8"}
    assert not [p.name for p in ROOT.iterdir() if p.name in strays]
