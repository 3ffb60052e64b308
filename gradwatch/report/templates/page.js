"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

async function loadPlotly() {
  const text = atob(document.getElementById("plotly").textContent), packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i); // Uint8Array.from takes ten times as long
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  // To run it takes half a second or more: the words of the page are seen before.
  if (!document.hidden) await new Promise(seen => requestAnimationFrame(() => setTimeout(seen)));
  document.head.append(script);
}

// A figure's colours are those of a white page; these stand for them on a dark one. All others show on both.
const dark = { "#3c434d": "#c5ccd6", "#e7eaee": "#2c333d", "#c9ced6": "#454e5b", "#eef0f3": "#242a33", "#333": "#c5ccd6", white: "#262d36",
  "rgba(255,255,255,.8)": "rgba(27,32,39,.8)", "#1f5fa8": "#74adf0", "#4b5260": "#a9b2be", "#9db2c8": "#7d8fa3" };
const recolored = part => {
  if (Array.isArray(part)) return part.map(recolored);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, value]) =>
    [key, typeof value === "string" ? (/color$/.test(key) && dark[value]) || value : key === "colorscale" ? value : recolored(value)]));
};
const scheme = matchMedia("(prefers-color-scheme: dark)");
let printing = false;

// Where there is little room, long names beside an axis keep their ends.
const ends = name => name.length > 14 && !name.includes("&") ? `…${name.slice(-13)}` : name;
const fitted = (div, layout) => div.clientWidth > 480 ? layout : Object.fromEntries(Object.entries(layout).map(([key, axis]) =>
  [key, /^yaxis/.test(key) && axis.ticktext ? { ...axis, ticktext: axis.ticktext.map(ends), tickfont: { size: 9 } } : axis]));

const draw = div => {
  const wanted = scheme.matches && !printing ? "dark" : "light";
  if (div.dataset.drawn === wanted) return;
  const { data, layout } = wanted === "dark" ? recolored(figures[div.dataset.chart]) : figures[div.dataset.chart];
  const plot = div.dataset.drawn ? Plotly.react : Plotly.newPlot;
  div.dataset.drawn = wanted;
  return plot(div, data, fitted(div, layout), config);
};
const redraw = () => document.querySelectorAll(".plot[data-drawn]").forEach(draw);

// On paper all charts, those of every tab too, as wide as a page, on white.
function print(on) {
  const panels = [...document.querySelectorAll(".tabs button")].map(tab => [tab, document.getElementById(tab.dataset.panel)]);
  printing = on;
  document.body.classList.toggle("printed", on);
  if (on) panels.forEach(([, panel]) => { panel.hidden = false; });
  const shown = [...document.querySelectorAll(".plot")].filter(div => !div.closest("[hidden], details:not([open])"));
  shown.forEach(div => { draw(div); Plotly.relayout(div, { width: on ? div.clientWidth : null, autosize: !on }); });
  if (!on) panels.forEach(([tab, panel]) => { panel.hidden = tab.getAttribute("aria-selected") !== "true"; });
}

function chooseTab(button) {
  for (const other of button.parentElement.children) {
    other.setAttribute("aria-selected", String(other === button));
    document.getElementById(other.dataset.panel).hidden = other !== button;
  }
  document.querySelectorAll(`#${button.dataset.panel} .plot`).forEach(draw);
  const input = button.closest(".card").querySelector(".find");
  if (input?.value) findLayer(input);
}

// The rows of the table and of the heatmaps whose layers have the text in their name; a map's row may stand for several.
function findLayer(input) {
  const text = input.value.trim().toLowerCase(), all = Number(input.dataset.layers);
  const rows = [...document.querySelectorAll(".layers tbody tr")];
  const found = rows.flatMap((tr, i) => tr.cells[0].textContent.toLowerCase().includes(text) ? [i] : []);
  rows.forEach(tr => { tr.hidden = true; });
  found.forEach(i => { rows[i].hidden = false; });
  input.classList.toggle("bad-text", !found.length);
  for (const div of input.parentElement.querySelectorAll(".plot[data-drawn]")) {
    const { data, layout } = figures[div.dataset.chart], names = data[0].y, size = Math.ceil(all / names.length);
    const places = [...new Set(found.map(i => Math.floor(i / size)))], every = Math.ceil(places.length / 50);
    const labels = places.filter((_, i) => i % every === 0).map(i => names[i]);
    Plotly.relayout(div, text && places.length
      ? { "yaxis.range": [places.at(-1) + .5, places[0] - .5], "yaxis.autorange": false,
          "yaxis.tickvals": labels, "yaxis.ticktext": labels }
      : { "yaxis.autorange": "reversed", "yaxis.tickvals": layout.yaxis.tickvals, "yaxis.ticktext": layout.yaxis.ticktext });
  }
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
document.querySelectorAll(".find").forEach(input => input.addEventListener("input", () => findLayer(input)));
document.querySelectorAll(".legend button").forEach(b => b.addEventListener("click", () => togglePolicy(b)));

// What has come into view, from the top: one chart at a time, so that each is seen before the next one is worked on.
const waiting = [];
function drawWaiting() {
  if (!waiting.length) return;
  draw(waiting.shift());
  requestAnimationFrame(() => setTimeout(drawWaiting));
}

loadPlotly().then(() => {
  const plots = [...document.querySelectorAll(".plot")].filter(div => !div.closest("[hidden]"));
  const near = new IntersectionObserver(entries => {
    const idle = !waiting.length;
    waiting.push(...entries.filter(entry => entry.isIntersecting).map(entry => entry.target));
    if (idle) drawWaiting();
  }, { rootMargin: "300px" });
  plots.forEach(div => near.observe(div));
  scheme.addEventListener("change", redraw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
}).catch(error => {
  const message = document.createElement("p");
  message.className = "card bad-text";
  message.textContent = `The charts cannot be drawn: ${error}. This page needs a browser of 2023 or later.`;
  document.querySelector("h1").after(message);
});
