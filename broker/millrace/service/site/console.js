// Adds to pages that read well without it: theme, copy, hover cards, keys, filter and sort, live reading. No library, no inline style.
"use strict";
const $ = (what, where = document) => where.querySelector(what);
const $$ = (what, where = document) => [...where.querySelectorAll(what)];
const EVERY_MS = 5000;

function element(name, text, cls) {
  const one = document.createElement(name);
  one.textContent = text;
  if (cls) one.className = cls;
  return one;
}

// theme: the system's, or what was chosen
const theme = $(".theme");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    try { localStorage.setItem("millrace-theme", root.dataset.theme); } catch { /* not kept */ }
  });
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch { // no clipboard without HTTPS: select the text instead
    getSelection().selectAllChildren(button.previousElementSibling);
    if (!document.execCommand("copy")) return;
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1600);
}

async function acknowledge(button) {
  const who = prompt("Who works on this incident? The name is shown beside it.");
  if (!who || !who.trim()) return;
  const answer = await fetch(`v1/incidents/${encodeURIComponent(button.dataset.key)}/acknowledge`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ who: who.trim() }),
  });
  if (answer.ok) { await look(); return; }
  const error = answer.headers.get("content-type")?.includes("json") ? (await answer.json()).error : "";
  button.replaceWith(element("p", `Not acknowledged: ${error || "only the auditor's own page can do that"}`, "acked"));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) copy(button);
  if (button?.dataset.key) acknowledge(button);
});

// one hover card for the map and for charts
const card = element("div", "");
card.id = "hover";
card.hidden = true;
document.body.append(card);
function show(x, y, parts) {
  card.replaceChildren(...parts);
  card.hidden = false;
  const box = card.getBoundingClientRect();
  card.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  card.style.top = `${y + box.height + 24 > innerHeight ? Math.max(4, y - box.height - 12) : y + 16}px`;
}
const hide = () => { card.hidden = true; };

// the map: one stop of the Tab key, arrows inside
const cellsOf = (row) => $$(".cells a", row);
const rowsOf = (map) => $$(".mrow[data-name]", map).filter((row) => !row.hidden);
const stopOf = (cells) => cells.find((cell) => cell.matches(".incomplete, .unknown")) || cells[0];
function stopAt(map, cell) {
  $$(".cells a[tabindex='0']", map).forEach((one) => { one.tabIndex = -1; });
  if (cell) cell.tabIndex = 0;
}

function tellCell(cell, x, y) {
  const parts = [element("b", cell.closest(".mrow").dataset.name), element("span", cell.getAttribute("aria-label"))];
  if (cell.dataset.note) parts.push(element("div", cell.dataset.note, "q"));
  show(x, y, parts);
}

function move(map, event) {
  const cell = event.target.closest(".cells a");
  if (event.key === "Escape") hide();
  if (!cell) return;
  const row = cell.closest(".mrow"), rows = rowsOf(map), at = cellsOf(row).indexOf(cell), down = rows.indexOf(row);
  const to = {
    ArrowRight: [down, at + 1], ArrowLeft: [down, at - 1], ArrowDown: [down + 1, at], ArrowUp: [down - 1, at],
    Home: [down, 0], End: [down, cellsOf(row).length - 1],
  }[event.key];
  const next = to && rows[to[0]] && cellsOf(rows[to[0]])[to[1]];
  if (!next) return;
  event.preventDefault();
  stopAt(map, next);
  next.focus();
}

function wireMap(map) {
  for (const cell of $$(".cells a", map)) {
    cell.tabIndex = -1;
    if (cell.title) { cell.dataset.note = cell.title; cell.removeAttribute("title"); }
  }
  const over = (event) => event.target.closest(".mrow[data-name] .cells a");
  map.addEventListener("mousemove", (event) => { const cell = over(event); if (cell) tellCell(cell, event.clientX, event.clientY); else hide(); });
  map.addEventListener("mouseleave", hide);
  map.addEventListener("focusin", (event) => {
    const cell = over(event);
    if (!cell?.matches(":focus-visible")) return;
    const box = cell.getBoundingClientRect();
    tellCell(cell, box.right, box.bottom - 10);
  });
  map.addEventListener("focusout", hide);
  map.addEventListener("keydown", (event) => move(map, event));
  const form = $(".filter");
  form.addEventListener("input", () => filter(map, form));
  form.addEventListener("submit", (event) => { event.preventDefault(); filter(map, form); });
  filter(map, form, false);
}

// filter and sort at once; without a script the form asks the server
const behind = (row) => (row.dataset.behind === "" ? Infinity : Number(row.dataset.behind));
const ORDERS = {
  worst: (a, b) => b.matches(".held") - a.matches(".held"),
  name: (a, b) => (a.dataset.name < b.dataset.name ? -1 : 1),
  behind: (a, b) => behind(b) - behind(a) || 0,
  size: (a, b) => b.dataset.size - a.dataset.size,
};
function filter(map, form, isChange = true) {
  const words = form.q.value.trim().toLowerCase(), state = form.state.value, sort = form.sort.value;
  const rows = $$(".mrow[data-name]", map), groups = $$(".group", map);
  for (const row of rows) {
    const { name, owner, state: own } = row.dataset;
    row.hidden = !(`${name} ${owner}`.toLowerCase().includes(words) && (!state || own === state || (state === "held" && row.matches(".held"))));
  }
  const seen = rowsOf(map);
  if (isChange) {
    const kept = sort === "worst" && map.dataset.kept ? JSON.parse(map.dataset.kept) : null;
    const sorted = kept ? rows.sort((a, b) => kept.indexOf(a.dataset.name) - kept.indexOf(b.dataset.name)) : rows.sort(ORDERS[sort]);
    map.append(groups[0], ...sorted.filter((row) => row.matches(".held") || sort !== "worst"), groups[1], ...sorted.filter((row) => row.matches(".ok") && sort === "worst"));
    const asked = new URLSearchParams(location.search);
    for (const [key, value] of [["q", words], ["state", state], ["sort", sort === "worst" ? "" : sort]]) { if (value) asked.set(key, value); else asked.delete(key); }
    history.replaceState(null, "", `${location.pathname}${asked.size ? `?${asked}` : ""}${location.hash}`);
  } else if (sort === "worst") map.dataset.kept = JSON.stringify(rows.map((row) => row.dataset.name));
  groups[0].hidden = sort !== "worst" || !seen.some((row) => row.matches(".held"));
  groups[1].hidden = sort !== "worst" || !seen.some((row) => row.matches(".ok"));
  $("#empty").hidden = seen.length > 0;
  if (!$(".mrow:not([hidden]) .cells a[tabindex='0']", map)) stopAt(map, seen.length ? stopOf(cellsOf(seen[0])) : null);
}

// charts: the numbers below a chart are what its card says
function wireChart(chart) {
  const body = $$(".numbers tbody tr", chart), heads = $$(".numbers thead th", chart).map((one) => one.textContent), drawn = $$("svg[data-slots]", chart);
  const leave = () => { hide(); $$(".cur", chart).forEach((one) => one.remove()); };
  chart.addEventListener("mouseleave", leave);
  chart.addEventListener("mousemove", (event) => {
    const svg = event.target.closest("svg[data-slots]");
    if (!svg) { leave(); return; }
    const box = svg.getBoundingClientRect(), slots = Number(svg.dataset.slots);
    const slot = Math.max(0, Math.min(slots - 1, Math.floor((event.clientX - box.left) / box.width * slots)));
    if (!body[slot]) return;
    for (const one of drawn) {
      let line = $(".cur", one);
      if (!line) { line = document.createElementNS("http://www.w3.org/2000/svg", "path"); line.setAttribute("class", "cur"); one.append(line); }
      line.setAttribute("d", `M${slot + 0.5} 0V100`);
    }
    const table = document.createElement("table");
    [...body[slot].cells].slice(1).forEach((cell, at) => { table.insertRow().append(element("td", heads[at + 1]), element("td", cell.textContent)); });
    show(event.clientX, event.clientY, [element("b", body[slot].cells[0].textContent), table]);
  });
}

// bound to what <main> holds: again after each live reading
function wire() {
  for (const time of $$("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!isNaN(at)) time.title = `${at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" })} your time`;
  }
  const map = $("#map");
  if (map) wireMap(map);
  $$(".chart[data-hover]").forEach(wireChart);
}
wire();

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && $(".jump input")) { event.preventDefault(); $(".jump input").focus(); }
  if (event.key === "g") $("#map .mrow:not([hidden]) .cells a[tabindex='0']")?.focus();
});

// what must survive a new <main>: open details, and the place of the keyboard
function placeOf() {
  const cell = document.activeElement?.closest("#map .cells a");
  return {
    open: $$("main details").map((one) => one.open),
    cell: cell && [cell.closest(".mrow").dataset.name, cellsOf(cell.closest(".mrow")).indexOf(cell)],
    href: document.activeElement?.closest("main a")?.getAttribute("href"),
  };
}
function restore({ open, cell, href }) {
  $$("main details").forEach((one, at) => { if (at in open) one.open = open[at]; });
  if (cell) {
    const row = $(`#map .mrow[data-name="${CSS.escape(cell[0])}"]`), next = row && cellsOf(row)[cell[1]];
    if (next) { stopAt($("#map"), next); next.focus({ preventScroll: true }); }
  } else if (href) $(`main a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
}

// live: reads the page again and keeps what is open, chosen and focused; says so when nobody answers
async function look() {
  const light = $(".live");
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html"), main = $("#main", page);
    if (!main || !$(".live", page)) throw new Error("no page");
    const place = placeOf();
    $("#main").replaceWith(document.adoptNode(main));
    $(".clock").replaceWith(document.adoptNode($(".clock", page)));
    $("link[rel=icon]").href = $("link[rel=icon]", page).getAttribute("href");
    document.title = page.title;
    wire();
    restore(place);
  } catch {
    light.classList.add("old");
    light.textContent = "the auditor does not answer: this is from";
  }
}
if ($(".live")) {
  setInterval(() => {
    const focused = document.activeElement, isHovering = !card.hidden && !focused?.closest("#map .cells a");
    const isBusy = document.hidden || isHovering || focused?.matches("input, select, textarea");
    if (!isBusy) look();
  }, EVERY_MS);
}
