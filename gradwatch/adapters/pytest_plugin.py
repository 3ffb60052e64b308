"""A pytest plugin: the fixture `gradwatch_watch` watches the training in a test, which fails on what is found.

pytest loads it in every test run of whoever has gradwatch installed: nothing slow is imported before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradwatch.recording.watch import Watch

_WATCHES = pytest.StashKey["list[Watch]"]()
FAILING = {"error": ("error",), "warning": ("error", "warning")}


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    text = 'gradwatch(fail_on="error"): the least severe finding that fails a test, error or warning'
    config.addinivalue_line("markers", text)


@pytest.fixture
def gradwatch_watch(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Callable[..., Watch], None, None]:
    """`gradwatch.watch`, whose run stays in `tmp_path`: when the test has passed, findings of severity error fail it.

    With `@pytest.mark.gradwatch(fail_on="warning")` warnings do so too. Any argument of `watch()` may be given.
    """
    from gradwatch.recording.attach import watch

    watches: list[Watch] = []
    request.node.stash[_WATCHES] = watches

    def watched(model: Any, optimizer: Any, **options: Any) -> Watch:
        if "run" not in options:  # the part of a run lies where that does
            options = {"log": None, "dir": tmp_path, "verbose": False, **options}
        watches.append(watch(model, optimizer, **options))
        return watches[-1]

    yield watched
    for one in watches:  # of a test that failed by itself
        one.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    """A test that passed fails on the findings of what it trained: here and not in the fixture's end, where it would be
    an error beside a test that passed.
    """
    outcome = yield
    watches = item.stash.get(_WATCHES, None)
    if watches and outcome.excinfo is None:
        try:
            _judge(item, watches)
        except BaseException as error:
            outcome.force_exception(error)


def _judge(item: pytest.Item, watches: list[Watch]) -> None:
    from gradwatch.analysis.rules import diagnose, verdict
    from gradwatch.storage.shared_folder import home_of, read_whole

    mark = item.get_closest_marker("gradwatch")
    fail_on = mark.kwargs.get("fail_on", "error") if mark else "error"
    if fail_on not in FAILING:
        pytest.fail(f"gradwatch(fail_on={fail_on!r}): wanted error or warning", pytrace=False)
    for watch in watches:
        watch.close()
    bad = []
    for folder in dict.fromkeys(home_of(watch.dir) for watch in watches):
        history = read_whole(folder) if folder.is_dir() else None
        findings = [] if history is None else diagnose(history)
        if history is None or not (len(history) or findings):
            bad.append("no step: the optimizer that it watched was never stepped")
            continue
        item.add_report_section("call", "gradwatch", f"{folder.name}: {verdict(history, findings)}")
        found = [finding for finding in findings if finding.severity in FAILING[fail_on]]
        bad += [f"{f.severity}: {f.summary}\n  {f.cause}\n  {f.cure}" for f in found]
    if bad:
        pytest.fail("gradwatch found:\n" + "\n".join(bad), pytrace=False)
