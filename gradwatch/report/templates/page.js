"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

const draw = div => {
  if (div.dataset.drawn) return;
  div.dataset.drawn = "yes";
  const { data, layout } = figures[div.dataset.chart];
  return Plotly.newPlot(div, data, layout, config);
};

function chooseTab(button) {
  for (const other of button.parentElement.children) {
    other.setAttribute("aria-selected", String(other === button));
    document.getElementById(other.dataset.panel).hidden = other !== button;
  }
  document.querySelectorAll(`#${button.dataset.panel} .plot`).forEach(draw);
}

function togglePolicy(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shown));
  for (const div of button.closest("[data-section]").querySelectorAll(".plot")) {
    const { data } = figures[div.dataset.chart];
    const traces = data.flatMap((trace, i) => trace.legendgroup === button.dataset.policy ? [i] : []);
    if (div.dataset.drawn && traces.length) Plotly.restyle(div, { visible: shown }, traces);
    traces.forEach(i => { data[i].visible = shown; });
  }
}

// Numbers by their value, text in natural order; what is unknown stays last. A second click turns the order round.
function sortBy(heading) {
  const row = heading.parentElement, column = [...row.children].indexOf(heading);
  const body = heading.closest("table").tBodies[0], sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of row.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const compare = (a, b) => {
    const [one, two] = [a, b].map(tr => tr.children[column]);
    if (one.dataset.key === undefined) return sign * one.textContent.localeCompare(two.textContent, "en", { numeric: true });
    const unknown = (one.dataset.key === "") - (two.dataset.key === "");
    return unknown || sign * (Number(one.dataset.key) - Number(two.dataset.key));
  };
  body.append(...[...body.rows].sort(compare));
  for (const tr of body.rows) tr.classList.remove("group");
}

document.querySelectorAll(".sortable th button").forEach(b => b.addEventListener("click", () => sortBy(b.parentElement)));
document.querySelectorAll(".tabs button").forEach(b => b.addEventListener("click", () => chooseTab(b)));
document.querySelectorAll(".legend button").forEach(b => b.addEventListener("click", () => togglePolicy(b)));

loadPlotly().then(() => {
  const plots = [...document.querySelectorAll(".plot")].filter(div => !div.closest("[hidden]"));
  const near = new IntersectionObserver(
    entries => entries.filter(entry => entry.isIntersecting).forEach(entry => draw(entry.target)), { rootMargin: "800px" });
  plots.forEach(div => near.observe(div));
  addEventListener("beforeprint", () => plots.filter(div => !div.closest("details:not([open])")).forEach(draw));
}).catch(error => {
  const message = document.createElement("p");
  message.className = "card bad-text";
  message.textContent = `The charts cannot be drawn: ${error}. This page needs a browser of 2023 or later.`;
  document.querySelector("h1").after(message);
});
