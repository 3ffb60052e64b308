"""The page in a real browser: charts drawn, nothing on the console, names that stay text, a frame without rights."""

import shutil
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from make_run import make_history, make_run
from pages import hostile_history

from gradwatch.analysis.rules import Finding
from gradwatch.launcher.demo.summary import write_reports
from gradwatch.report import build_report, render_html

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


WIDE = {"width": 1280, "height": 8000}


@contextmanager
def viewing(browser, folder):
    """Opens a page from a file; gives the browser page and what it complained about."""
    page = browser.new_page(viewport=WIDE)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)

    def show(html):
        (folder / "report.html").write_text(html, encoding="utf-8")
        page.goto((folder / "report.html").as_uri())
        return page, complaints

    yield show
    page.close()


@pytest.fixture
def view(browser, tmp_path):
    with viewing(browser, tmp_path) as show:
        yield show


def wait_until_drawn(frame):
    """Wait until every chart that is neither behind a tab nor folded has its axes, however slow the machine."""
    frame.wait_for_function(
        """() => [...document.querySelectorAll(".plot")].every(
        div => div.closest("[hidden], details:not([open])") || div.querySelector(".xaxislayer-above"))""",
        timeout=0,
    )


def sick_run():
    history = make_history(steps=200, nan_at=50)
    history.layer("grad_norm")[100:, 4] = 0
    return history


def test_the_charts_of_one_run_are_drawn(view):
    page, complaints = view(render_html(build_report([sick_run()])))
    wait_until_drawn(page)
    counts = page.evaluate("""[...document.querySelectorAll('.plot')].filter(div => div.data).map(div => [
        div.data.length, div.querySelectorAll('.scatterlayer .trace, .heatmaplayer image, .hm image').length])""")
    # that of a finding (what follows from it is folded), a heatmap, six curves, three depth profiles
    assert len(counts) == 11
    assert all(traces > 0 and shown > 0 for traces, shown in counts)
    names = page.evaluate("[...document.querySelectorAll('[id^=tab-] .ytick text')].map(t => [t.textContent, "
                          "t.getBoundingClientRect().y])")  # fmt: skip
    assert [name for name, _ in sorted(names, key=lambda pair: pair[1])] == list(sick_run().layers)
    assert complaints == []


def test_each_chart_is_seen_before_the_next_is_drawn(view):
    page, complaints = view("<!doctype html>")
    page.add_init_script("""window.seen = [];  // at each frame, how many charts are there
        (function look() {
            seen.push(document.querySelectorAll(".plot[data-drawn]").length);
            requestAnimationFrame(look);
        })()""")
    view(render_html(build_report([make_history(steps=20)])))
    wait_until_drawn(page)
    seen = page.evaluate("[...new Set(window.seen)]")
    assert seen == list(range(seen[-1] + 1))
    assert len(seen) > 5
    assert complaints == []


def test_the_words_are_seen_before_plotly_runs(view):
    page, complaints = view("<!doctype html>")
    page.add_init_script("""(function look() {  // before each paint
        if (typeof Plotly !== "undefined") window.ran ??= performance.now();
        requestAnimationFrame(look);
    })()""")
    view(render_html(build_report([make_history(steps=20)])))
    wait_until_drawn(page)
    painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert painted < page.evaluate("window.ran")
    assert complaints == []


FOLLOWS = "summary:has-text('What follows from it')"


def diseased_run():
    """A report with a root and two consequences, all with charts."""
    below = [Finding(rule, "warning", ("head.weight",), 60, 199, {"ratio": 3e-9}, "Why.", "How.")
             for rule in ("vanishing", "update-too-small")]  # fmt: skip
    cure = "Clip: chain(SkipNonfinite(), ClipByGlobalNorm(0.5)), and lower the learning rate."
    root = Finding("exploding", "error", (), 50, 199, {"growth": 412.5}, "The steps are too large.", cure,
                   consequences=tuple(below))  # fmt: skip
    report = build_report([replace(sick_run(), run=replace(sick_run().run, clip=None))])
    return replace(report, runs=(replace(report.runs[0], findings=(root,), verdict=root.summary),))


OPEN = "[...document.querySelectorAll('details')].map(part => part.open)"


@pytest.fixture(scope="module")
def loaded(browser, tmp_path_factory):
    """The page of `diseased_run`, which takes seconds to draw, its complaints, and what of it is unfolded at first."""
    with viewing(browser, tmp_path_factory.mktemp("diseased")) as show:
        page, complaints = show(render_html(diseased_run()))
        yield page, complaints, page.evaluate(OPEN)


@pytest.fixture
def diseased(loaded):
    """That page as it was at first; what it ever complained of stays."""
    page, complaints, unfolded = loaded
    page.set_viewport_size(WIDE)
    page.evaluate("""unfolded => {
        document.querySelectorAll("details").forEach((part, i) => { part.open = unfolded[i]; });
        getSelection().empty();
        scrollTo(0, 0);
    }""", unfolded)  # fmt: skip
    return page, complaints


def test_the_first_screen_says_what_where_when_and_what_to_do(diseased):
    page, complaints = diseased
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_selector(".finding .plot .xaxislayer-above")

    def bottom(what):
        box = page.locator(what).first.bounding_box()
        return box["y"] + box["height"]

    for what in ("text=Error: exploding at step 50", "text=steps 50 to 199 · the whole model", "text=What to do:",
                 ".finding pre", ".finding .plot", FOLLOWS, ".advice pre"):  # fmt: skip
        assert bottom(what) < 800, what
    words, shown = page.locator(".finding h3").first.bounding_box(), page.locator(".finding .plot").first.bounding_box()
    assert shown["x"] > words["x"] + words["width"]  # beside each other
    frames = page.locator(".finding .plot >> nth=0 >> css=.shapelayer path")
    assert frames.count() == 1
    assert complaints == []


def test_what_follows_is_folded_and_drawn_when_it_is_opened(diseased):
    page, complaints = diseased
    wait_until_drawn(page)
    below = page.locator("details .plot")
    assert below.count() == 2
    assert not below.first.is_visible()
    assert below.locator(".xaxislayer-above").count() == 0
    page.click(FOLLOWS)
    page.wait_for_function("() => document.querySelectorAll('details .plot .xaxislayer-above').length === 2")
    assert below.first.bounding_box()["width"] > 300
    assert complaints == []


def test_more_opens_the_page_about_the_rule(diseased):
    page, complaints = diseased
    more = page.locator(".finding").first.locator("details.more").first
    assert not more.locator("h2", has_text="When it is wrong").is_visible()
    more.locator("summary").click()
    assert more.locator("h2", has_text="When it is wrong").is_visible()
    assert more.locator("td", has_text="decades").first.is_visible()  # the thresholds
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert complaints == []


@pytest.mark.slow
def test_a_narrow_page_puts_the_chart_below_and_scrolls_only_down(diseased):
    page, complaints = diseased
    page.set_viewport_size({"width": 390, "height": 6000})
    page.reload()
    page.click(FOLLOWS)
    wait_until_drawn(page)
    words, shown = page.locator(".finding h3").first.bounding_box(), page.locator(".finding .plot").first.bounding_box()
    assert shown["y"] > words["y"] + words["height"]
    assert shown["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []


def test_a_click_selects_the_whole_policy(diseased):
    page, _ = diseased
    page.click(".finding pre")
    wanted = 'clip="chain(SkipNonfinite(), ClipByGlobalNorm(0.5))"'
    assert page.evaluate("getSelection().toString()").strip() == wanted


def test_a_tab_shows_another_quantity(view):
    page, complaints = view(render_html(build_report([sick_run()])))
    charts = page.locator("[id^=tab-] .plot")
    charts.nth(0).locator(".main-svg").first.wait_for()
    page.click("text=Weight norm")
    charts.nth(1).locator(".main-svg").first.wait_for()
    assert not charts.nth(0).is_visible()
    assert charts.nth(1).bounding_box()["width"] > 800
    assert complaints == []


def test_a_policy_can_be_hidden_in_all_charts_of_its_section(view):
    runs = [make_history(steps=60, seed=s, clip=clip) for clip in ("AGC(0.01)", None) for s in (0, 1)]
    page, complaints = view(render_html(build_report(runs)))
    wait_until_drawn(page)
    page.click(".legend button:has-text('AGC')")
    shown = page.evaluate("""[...document.querySelectorAll('.plot')].map(div =>
        div.data.filter(t => t.visible !== false).map(t => t.legendgroup))""")
    assert len(shown) == 5
    assert {group for chart in shown for group in chart} == {"none"}
    assert complaints == []


def test_the_comparison_can_be_sorted_by_mouse_and_by_keyboard(view):
    runs = [make_history(steps=40, seed=s, clip=clip) for clip in (None, "AGC(0.01)", "AGC(0.1)") for s in (0, 1)]
    for i, history in enumerate(runs):
        history.per_step["clip_rate"][:] = (0.5, 0.05, np.nan)[i // 2]
    page, complaints = view(render_html(build_report(runs)))
    order = "[...document.querySelectorAll('.sortable tbody tr')].map(tr => tr.cells[0].innerText)"
    page.click(".sortable th button:has-text('clip rate')")
    assert page.evaluate(order) == ["AGC(0.01)", "none", "AGC(0.1)"]  # 5 % before 50 %, the unknown last
    page.keyboard.press("Enter")
    assert page.evaluate(order) == ["none", "AGC(0.01)", "AGC(0.1)"]
    page.click(".sortable th button:has-text('policy')")
    assert page.evaluate(order) == ["AGC(0.01)", "AGC(0.1)", "none"]
    sorted_by = "[...document.querySelectorAll('.sortable th[aria-sort]')].map(th => th.innerText + th.ariaSort)"
    assert [text.split()[0] for text in page.evaluate(sorted_by)] == ["policyascending"]
    assert complaints == []


@pytest.mark.parametrize("many", [False, True])
def test_hostile_names_stay_text(view, many):
    one = hostile_history()
    two = replace(one, run=replace(one.run, clip=None))
    page, complaints = view(render_html(build_report([one, two] if many else [one])))
    wait_until_drawn(page)
    for plot in page.query_selector_all(".plot .nsewdrag"):
        if plot.is_visible():
            plot.hover()  # the hover label carries names too
            page.wait_for_timeout(50)
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.images.length") == 0
    if not many:
        assert "<b>b</b>" in page.evaluate("[...document.querySelectorAll('.ytick text')].map(t => t.textContent)")
    assert page.inner_text("h1") == ("2 runs compared" if many else one.run.name)
    assert complaints == []


PWN = "</script><script>__pwned=1</script><img src=x onerror=__pwned=1><svg onload=__pwned=1>\"'`"


@pytest.mark.slow
@pytest.mark.parametrize("many", [False, True])
def test_no_name_runs_a_script_whatever_its_length(view, many):
    names = (PWN, "\u202egnp.exe \u2028\u2029\x00", "x" * 10_000, f"{PWN * 50}{{{{7*7}}}}", "javascript:__pwned=1")
    runs = [
        make_history(steps=60, layers=names, logged=("loss", *names), name=names[i], clip=names[3 * i], nan_at=30,
                     params={PWN: names[i], "seed": "0"})
        for i in range(1 + many)
    ]  # fmt: skip
    page, complaints = view(render_html(build_report(runs)))
    charts = [plot for plot in page.query_selector_all(".plot") if plot.is_visible()]
    for chart in charts:
        chart.scroll_into_view_if_needed()  # it is drawn when it comes into view
        chart.wait_for_selector(".xaxislayer-above", timeout=0)
    assert len(charts) > 2
    wait_until_drawn(page)
    assert page.evaluate("window.__pwned") is None
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert "\u202e" not in page.content()
    assert complaints == []


def test_the_page_may_run_only_its_own_scripts_and_load_nothing(view):
    page, complaints = view(render_html(build_report([make_history(steps=20)])))
    wait_until_drawn(page)
    assert complaints == []
    page.evaluate("""() => {
        const add = (tag, set) => document.body.append(Object.assign(document.createElement(tag), set));
        add("script", { textContent: "window.__pwned = 1" });
        add("img", { src: "https://example.com/a.png" });
        document.body.insertAdjacentHTML("beforeend", "<a id=a onclick='__pwned=2' href='javascript:__pwned=3'>");
        document.getElementById("a").click();
        fetch("https://example.com/").catch(() => null);
    }""")
    page.wait_for_timeout(300)
    assert page.evaluate("window.__pwned") is None
    refused = [text for text in complaints if "Content Security Policy" in text]
    assert len(refused) >= 4


def test_the_page_has_no_eval_and_no_inline_handlers(view):
    """Asked by a timer: while `page.evaluate` itself runs, Chromium allows eval."""
    page, _ = view(render_html(build_report([make_history(steps=20)])))
    page.evaluate("""() => setTimeout(() => {
        const ways = [() => eval("window.ran = 1"), () => new Function("window.ran = 2")()];
        window.said = ways.map(way => { try { way(); } catch (error) { return error.name; } });
        setTimeout("window.ran = 3");
        document.body.insertAdjacentHTML("beforeend", "<img src='data:,' onerror='window.ran = 4'>");
    }) && null""")
    page.wait_for_timeout(300)
    assert page.evaluate("window.said") == ["EvalError", "EvalError"]
    assert page.evaluate("window.ran") is None


def test_it_works_in_a_frame_without_rights(view):
    """As MLflow's artifact tab shows it: a blob in an iframe that may run scripts and nothing else."""
    page, complaints = view("<!doctype html><body></body>")
    page.evaluate(
        """html => {
            const frame = document.createElement("iframe");
            frame.sandbox = "allow-scripts";
            frame.style = "width: 900px; height: 2500px";
            frame.src = URL.createObjectURL(new Blob([html], { type: "text/html" }));
            document.body.append(frame);
        }""",
        render_html(build_report([sick_run()])),
    )
    page.wait_for_selector("iframe")
    frame = page.query_selector("iframe").content_frame()
    frame.wait_for_selector(".plot .xaxislayer-above", timeout=0)
    assert frame.evaluate("window.origin") == "null"
    assert frame.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert complaints == []


@pytest.mark.slow
def test_a_large_model_and_a_long_run(view):
    history = make_history(steps=20_000, layers=tuple(f"block.{i}.weight" for i in range(60)))
    history.total("grad_norm")[12_345] = np.inf
    page, complaints = view(render_html(build_report([history])))
    wait_until_drawn(page)
    assert "so no spike is lost" in page.inner_text("main")
    assert complaints == []


# ------------------------------------------------------------------------------- dark pages, wide tables, paper


def test_a_dark_system_has_a_dark_page_and_dark_charts(view):
    page, complaints = view(render_html(build_report([sick_run()])))
    colors = "[getComputedStyle(document.body).backgroundColor, document.querySelector('.plot').layout.font.color]"
    wait_until_drawn(page)
    light = page.evaluate(colors)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {colors}.every((color, i) => color !== {light}[i])")
    background, ink = page.evaluate(colors)
    assert (background, ink) == ("rgb(18, 22, 27)", "#c5ccd6")
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"() => {colors}.every((color, i) => color === {light}[i])")
    assert complaints == []


def test_no_policy_is_broken_on_a_phone(view):
    page, _ = view(render_html(build_report([make_history()])))
    page.set_viewport_size({"width": 390, "height": 800})
    heights = page.evaluate("[...document.querySelectorAll('td.text')].map(td => td.clientHeight)")
    assert len(heights) > 5
    assert max(heights) < 40  # one line
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_first_column_of_a_wide_table_stays_in_sight(view):
    runs = [
        make_history(steps=20, clip=f"ClipByGlobalNorm({n}.0)", name=f"run{n}", params={"lr": f"{n}"}) for n in (1, 2)
    ]
    page, _ = view(render_html(build_report(runs)))
    page.set_viewport_size({"width": 420, "height": 800})
    moved = page.evaluate("""() => {
        const box = document.querySelector('.scroll'), cell = box.querySelector('tbody td');
        const other = cell.nextElementSibling;
        const before = [cell, other].map(td => td.getBoundingClientRect().x);
        box.scrollLeft = 300;
        return [cell, other].map((td, i) => before[i] - td.getBoundingClientRect().x);
    }""")
    assert moved == [pytest.approx(0, abs=20), pytest.approx(300, abs=2)]  # up to the padding of the card


def test_paper_has_every_chart_at_its_width(view):
    page, complaints = view(render_html(build_report([sick_run()])))
    wait_until_drawn(page)
    wide = page.evaluate("document.querySelector('.card > .plot .main-svg').clientWidth")
    page.emulate_media(color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("""() => [...document.querySelectorAll('.plot[data-drawn]')].every(
        div => div.dataset.drawn === 'light' && div.querySelector('.main-svg').clientWidth <= 700)""")
    tabs, seen = "document.querySelectorAll('.tabs button').length", "[id^=tab-]:not([hidden])"
    of_tabs = page.evaluate(f"[{tabs}, document.querySelectorAll('{seen} .plot[data-drawn]').length]")
    assert of_tabs[0] == of_tabs[1] > 1
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(f"document.querySelectorAll('{seen}').length") == 1
    page.wait_for_function(f"() => document.querySelector('.card > .plot .main-svg').clientWidth === {wide}")
    assert complaints == []


def test_a_layer_is_found_in_the_maps_and_in_the_table(view):
    layers = tuple(f"blocks.{i}.weight" for i in range(401))  # three to a row of the map
    page, complaints = view(render_html(build_report([make_history(steps=20, layers=layers)])))
    wait_until_drawn(page)
    page.fill(".find", "blocks.200.")
    state = """() => [document.querySelector('.find').parentElement.querySelector('.plot').layout.yaxis.range,
        [...document.querySelectorAll('.layers tbody tr:not([hidden])')].map(tr => tr.cells[0].textContent)]"""
    page.wait_for_function("() => document.querySelectorAll('.layers tbody tr:not([hidden])').length === 1")
    row = 200 // 3
    assert page.evaluate(state) == [[row + 0.5, row - 0.5], ["blocks.200.weight"]]
    page.fill(".find", "")
    page.wait_for_function("() => document.querySelectorAll('.layers tbody tr:not([hidden])').length === 401")
    (low, high), _ = page.evaluate(state)
    assert low > high  # all of them again, the first layer above
    assert complaints == []


def test_the_links_of_a_demos_page_lead_to_its_reports_and_back(view, tmp_path):
    for workload in ("mlp", "rnn"):
        for seed in range(2):
            sick = 20 if workload == "rnn" else None
            make_run(tmp_path / "runs", steps=60, nan_at=sick, name=f"{workload}-{seed}", seed=seed, clip=None,
                     params={"workload": workload, "data": "digits", "seed": str(seed)})  # fmt: skip
    reports = write_reports(tmp_path)
    page, complaints = view((tmp_path / "report.html").read_text())
    links = page.eval_on_selector_all("main a", "found => found.map(a => a.getAttribute('href'))")
    assert links[:2] == ["report-mlp.html", "report-rnn.html"]
    for i, name in enumerate(links):
        page.locator("main a").nth(i).click()
        page.wait_for_selector(".plot .xaxislayer-above")
        assert page.url == (tmp_path / name).as_uri()
        if name == "report-mlp.html":
            assert page.inner_text("h1") == reports["mlp"].title
        page.go_back()
    assert complaints == []
