"""More about a finding: the page of its rule, in the report and at an address that opens."""

import re
from urllib.request import urlopen

from make_run import make_history

from gradwatch.analysis.rules import RULES, Finding
from gradwatch.report.pages import address, page_html
from gradwatch.report.wording import finding_lines
from gradwatch.tracking.views import TRAINING, description, run_url, view_url

NAMES = [rule.__name__.replace("_", "-") for rule in RULES]


def test_the_page_of_every_rule_is_in_the_report_and_holds_nothing_that_lies_elsewhere():
    for name in NAMES:
        page = page_html(name)
        assert "<h2>How it is computed</h2>" in page, name
        assert "<img" not in page, name
        assert "<a" not in page, name
        assert "<h1" not in page, name


def test_the_address_in_the_terminal_opens():
    below = Finding("vanishing", "warning", (), 5, 6)
    (line,) = [s for s in finding_lines(Finding("spike", "error", (), 5, 6, consequences=(below,))) if "More:" in s]
    with urlopen(line.partition("More: ")[2]) as page:
        assert page.read().startswith(b"# spike\n")


def test_without_a_page_there_is_no_link():
    rule = "a-rule-of-a-later-version"
    assert (page_html(rule), address(rule)) == ("", "")
    assert not any("More:" in line for line in finding_lines(Finding(rule, "error", (), 5, 6)))


def test_mlflows_description_leads_to_the_report():
    text = description(make_history(), "1", "abc", {}, {"error spike at step 5": "Why. How."})
    assert f"Why. How. [More](#/experiments/1/runs/abc/artifacts/gradwatch/report.html?{TRAINING})" in text


def test_every_address_leads_to_model_training():
    """Without the word in it a fresh browser shows evaluation runs, prompts and traces."""
    text = description(make_history(60), "1", "abc", {}, {"spike": "Why."})
    links = [*re.findall(r"\((#/\S+)\)", text), run_url("sqlite:///a", "1", "abc"), view_url("sqlite:///a", "1")]
    assert len(links) == 4
    assert [link for link in links if "workflowType=machine_learning" not in link.partition("#")[2]] == []
