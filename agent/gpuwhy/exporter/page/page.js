// Draws /api/v1/page. Every text goes in as text: names come from drivers, pods and recordings.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
// Seconds, title, and the steps of the axis. The last is all that the agent keeps.
const SPANS = [[300, "5 min", 5], [900, "15 min", 3], [3600, "1 hour", 4]];
const BINS = 240;
const MOST_ROWS = 2000; // of a GPU; then all are asked for again, since the agent makes fewer of the older ones
const WIDE = 1000;
// How tall a verdict stands, of 100: the strip can be read without its colours.
const HEIGHT = {
  throttled: 100, starving: 100, "pseudo-peak": 100, "memory-bound": 55, healthy: 55, unknown: 30, idle: 15,
};
const LOSING = ["throttled", "starving", "pseudo-peak"];

const page = {};
for (const id of ["host", "sum", "notes", "about", "whose", "values", "sources", "bar", "spans", "legend", "gpus"])
  page[id] = document.getElementById(id);

const cards = new Map();
let doc = null;
let span = null; // seconds that the reader chose, null = as long as there is something to show
let run = "";
let serial = 0;
let goneSince = null;
let refusal = "";
let timer = 0;
let asking = false;

function el(tag, text, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function draw(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const name = (text, kind) => el("bdi", text, kind);
const clock = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hourCycle: "h23" });
const tone = (verdict) => (verdict in HEIGHT ? `is-${verdict}` : "is-unknown");

function length(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

const ago = (s) => (current() > 3600 ? `${s / 3600} h` : `${s / 60} min`);

// --- asking

async function ask() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  const stop = new AbortController();
  const patience = setTimeout(() => stop.abort(), 10000);
  try {
    const path = run ? `api/v1/page/${run}/${serial}` : "api/v1/page";
    // Of this page's address without a user and password, which fetch refuses.
    const answer = await fetch(new URL(path, location.origin + location.pathname), { cache: "no-store", signal: stop.signal });
    if (!answer.ok) throw new Error(`it answered ${answer.status}`);
    take(await answer.json());
    goneSince = null;
  } catch (error) {
    goneSince ??= Date.now() / 1000;
    refusal = error instanceof TypeError || error.name === "AbortError" ? "no answer" : error.message;
  } finally {
    clearTimeout(patience);
    asking = false;
  }
  notes();
  const every = doc ? Math.min(60, Math.max(1, doc.interval_s)) : 5;
  timer = setTimeout(ask, every * 1000);
}

function take(fresh) {
  const all = fresh.whole || fresh.run !== run;
  const first = doc === null;
  if (first) SPANS.push([fresh.span_s, `${fresh.span_s / 3600} hours`, 4]);
  doc = fresh;
  run = fresh.run;
  serial = fresh.serial;
  if (!fresh.judged && first) return;
  if (first) page.gpus.replaceChildren();
  const listed = new Set(fresh.gpus.map((gpu) => gpu.id));
  for (const [id, card] of cards)
    if (!listed.has(id)) {
      card.root.remove();
      cards.delete(id);
    }
  fresh.gpus.forEach((gpu, place) => {
    let card = cards.get(gpu.id);
    if (!card) cards.set(gpu.id, (card = build(gpu, fresh.gpus.length)));
    if (page.gpus.children[place] !== card.root) page.gpus.insertBefore(card.root, page.gpus.children[place] ?? null);
    const kept = all ? [] : card.rows;
    const last = kept.length ? kept[kept.length - 1][0] : 0;
    const added = gpu.rows.filter((row) => row[0] > last);
    // After a pause some of what is had comes again, made one with what is new.
    const start = added.length ? added[0][1] - added[0][2] + 0.2 : Infinity;
    card.rows = kept.filter((row) => row[1] <= start).concat(added).filter((row) => row[1] > fresh.now - fresh.span_s);
    card.gpu = gpu;
    if (card.rows.length > MOST_ROWS) run = "";
  });
  show();
}

// --- the whole page

function show() {
  page.about.hidden = page.bar.hidden = !doc.judged;
  put(page.host, doc.host);
  const counts = new Map();
  for (const gpu of doc.gpus) {
    const verdict = gpu.now && !doc.stale ? gpu.now.verdict : "not known";
    counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  }
  const order = Object.keys(HEIGHT);
  const said = [...counts].sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
  const found = said.map(([verdict, number]) => `${number} ${verdict}`).join(", ");
  put(page.sum, found ? `${doc.gpus.length} GPU${doc.gpus.length === 1 ? "" : "s"}: ${found}` : "no GPU seen yet");
  const losing = doc.gpus.filter((gpu) => gpu.now && LOSING.includes(gpu.now.verdict)).length;
  document.title = `${losing && !doc.stale ? `${losing} losing - ` : ""}${doc.host} - gpuwhy`;
  put(page.whose, doc.replaying ? "Recorded hosts, the highest of them" : "Host");
  facts(page.values, doc.host_values.map(([title, value]) => [title, value, ""]));
  facts(page.sources, doc.sources.map((source) => [
    source.name,
    source.up ? (source.yielding ? "profiling is taken by another tool" : "answers") : "does not answer",
    source.up && !source.yielding ? "" : "bad",
  ]));
  spans();
  for (const card of cards.values()) fill(card);
}

function facts(list, rows) {
  list.replaceChildren(...rows.map(([title, value, kind]) => {
    const pair = el("div", undefined, kind);
    const head = el("dt");
    head.append(name(title));
    pair.append(head, el("dd", value));
    return pair;
  }));
}

function notes() {
  const said = [];
  if (goneSince !== null)
    said.push(["gone", doc
      ? `The agent has not answered since ${clock(goneSince)} (${refusal}). Below is what it said last, at ${clock(doc.now)}.`
      : `The agent does not answer (${refusal}).`]);
  if (doc) {
    if (doc.replaying) said.push(["replay", "Replaying a recording: these are not the GPUs of this host."]);
    if (!doc.judged) said.push(["", `The first verdict comes after an interval of ${doc.interval_s} s.`]);
    if (doc.stale && goneSince === null) {
      const since = doc.last_reading ? ` The last one was at ${clock(doc.last_reading)}.` : "";
      said.push(["gone", `Readings have stopped: what the GPUs do now is not known.${since}`]);
    }
    if (doc.degraded) said.push(["", "Some signals come from a lower source than before, or from none."]);
  }
  const shown = [...page.notes.children].map((node) => node.textContent).join("\n");
  if (shown !== said.map(([, text]) => text).join("\n"))
    page.notes.replaceChildren(...said.map(([kind, text]) => el("p", text, `note ${kind}`)));
  document.body.classList.toggle("old", goneSince !== null || Boolean(doc && doc.stale));
}

function current() {
  if (span) return span;
  let oldest = doc.now;
  for (const { rows } of cards.values()) if (rows.length) oldest = Math.min(oldest, rows[0][1] - rows[0][2]);
  return (SPANS.find(([seconds]) => seconds >= doc.now - oldest) ?? SPANS[SPANS.length - 1])[0];
}

function spans() {
  if (!page.spans.children.length)
    for (const [seconds, title] of SPANS) {
      const button = el("button", title);
      button.type = "button";
      button.addEventListener("click", () => {
        span = seconds;
        show();
      });
      page.spans.append(button);
    }
  SPANS.forEach(([seconds], place) =>
    page.spans.children[place].setAttribute("aria-pressed", String(seconds === current())));
  if (!page.legend.children.length)
    for (const verdict of Object.keys(HEIGHT)) {
      const item = el("li");
      const mark = draw("svg", { viewBox: "0 0 10 100", preserveAspectRatio: "none", class: "mark", "aria-hidden": "true" });
      mark.append(draw("rect", { x: 0, y: 100 - HEIGHT[verdict], width: 10, height: HEIGHT[verdict], class: tone(verdict) }));
      item.append(mark, verdict);
      page.legend.append(item);
    }
}

// --- one GPU

function build(gpu, count) {
  const root = el("details", undefined, "gpu");
  root.open = count <= 2;
  const summary = el("summary");
  const head = el("span", undefined, "head");
  const parts = {
    name: name("", "name"), chip: el("span", "", "chip"), cause: name("", "cause"),
    whose: name("", "whose"), since: el("span", "", "since"),
  };
  head.append(parts.name, parts.chip, parts.cause, parts.whose, parts.since);
  const lead = el("span", undefined, "lead");
  const why = name("");
  const proof = name("", "proof");
  const next = name("", "next");
  lead.append(why, proof, next);
  const strip = draw("svg", { viewBox: `0 0 ${WIDE} 100`, preserveAspectRatio: "none", class: "strip", role: "img" });
  summary.append(head, lead, strip);
  const body = el("div", undefined, "body");
  root.append(summary, body);
  const card = { root, body, strip, why, proof, next, ...parts, rows: [], told: [], gpu };
  root.addEventListener("toggle", () => fill(card));
  return card;
}

function fill(card) {
  const { gpu } = card;
  const known = gpu.now !== null && !doc.stale;
  card.root.classList.toggle("unsure", !known);
  put(card.name, gpu.name);
  card.chip.className = `chip ${known ? tone(gpu.now.verdict) : "is-unknown"}`;
  put(card.chip, known ? gpu.now.verdict : gpu.now ? "not known" : "not judged yet");
  put(card.cause, known ? gpu.now.cause : gpu.now ? `was ${gpu.now.verdict} / ${gpu.now.cause}` : "");
  put(card.whose, gpu.now ? gpu.now.title : "");
  put(card.since, known && gpu.since !== null ? `for ${length(doc.now - gpu.since)}, since ${clock(gpu.since)}; confidence ${gpu.now.confidence.toFixed(2)}` : "");
  const lost = gpu.up === false ? "This GPU does not answer. " : "";
  put(card.why, lost + (gpu.now ? gpu.now.why : ""));
  put(card.proof, known ? gpu.now.evidence.slice(0, 4).map(([, value, test, , label]) => `${label} ${value} ${test}`).join(", ") : "");
  const [first] = known && LOSING.includes(gpu.now.verdict) ? gpu.now.steps : [];
  put(card.next, first ? `Next: ${first.replaceAll("`", "")}` : "");
  const until = doc.now;
  const from = until - current();
  strip(card, from, until);
  if (card.root.open) inside(card, from, until);
}

function strip(card, from, until) {
  const x = (at) => ((Math.min(until, Math.max(from, at)) - from) / (until - from)) * WIDE;
  const runs = joined(card.rows, from);
  card.strip.replaceChildren(...runs.map((each) => {
    const left = x(each.start);
    const tall = HEIGHT[each.verdict];
    const box = draw("rect", { x: left, y: 100 - tall, width: Math.max(1, x(each.end) - left), height: tall, class: tone(each.verdict) });
    const title = draw("title", {});
    title.textContent = `${each.verdict} / ${each.cause}, ${clock(each.start)} to ${clock(each.end)}`;
    box.append(title);
    return box;
  }));
  const seconds = new Map();
  for (const each of runs) seconds.set(each.verdict, (seconds.get(each.verdict) ?? 0) + each.end - Math.max(from, each.start));
  const most = [...seconds].sort((a, b) => b[1] - a[1]).map(([verdict, s]) => `${verdict} ${length(s)}`);
  card.strip.setAttribute("aria-label", `Last ${length(until - from)}: ${most.join(", ") || "nothing judged"}`);
}

// Neighbours of the same verdict and cause as one.
function joined(rows, from) {
  const runs = [];
  for (const [, end, seconds, code] of rows) {
    if (end <= from) continue;
    const [verdict, cause] = doc.causes[code] ?? ["unknown", "mixed"];
    const last = runs[runs.length - 1];
    const start = end - seconds;
    if (last && last.code === code && start - last.end < Math.max(1, seconds / 2)) last.end = end;
    else runs.push({ code, verdict, cause, start: last && start < last.end ? last.end : start, end });
  }
  return runs;
}

function inside(card, from, until) {
  const { gpu, rows } = card;
  const lanes = el("div", undefined, "lanes");
  doc.drawn.forEach(([title, unit], place) => lanes.append(lane(rows, place, title, unit, gpu.limits[place], from, until)));
  const axis = el("div", undefined, "axis");
  const [, , steps] = SPANS.find(([seconds]) => seconds === current());
  for (let left = steps; left >= 0; left--)
    axis.append(el("span", left ? `-${ago((current() * left) / steps)}` : "now"));
  lanes.append(axis);
  if (!card.body.children.length) card.body.append(el("div"), el("div", undefined, "texts"));
  card.body.children[0].replaceWith(lanes);
  const { now } = gpu;
  renew(card, 0, now && [now.evidence, now.confidence, now.flags], () => evidence(gpu));
  renew(card, 1, now && [now.steps, now.normal], () => advice(gpu));
  renew(card, 2, now && [now.workloads, now.more], () => workloads(gpu));
  renew(card, 3, [rows.length && rows[rows.length - 1][0], from], () => changes(rows, from));
  renew(card, 4, [gpu.model, gpu.uuid, gpu.sources, gpu.missing], () => about(gpu));
}

// Only what has changed is drawn anew, or a command that is being copied would be lost.
function renew(card, place, data, make) {
  const key = JSON.stringify(data);
  const texts = card.body.children[1];
  while (texts.children.length <= place) texts.append(el("section"));
  if (card.told[place] === key) return;
  card.told[place] = key;
  texts.children[place].replaceWith(data ? make() : el("section"));
}

function lane(rows, place, title, unit, limit, from, until) {
  const bins = Array.from({ length: BINS }, () => [0, 0]);
  const each = (until - from) / BINS;
  let latest = null;
  for (const row of rows) {
    const value = row[4 + place];
    if (row[1] <= from) continue;
    latest = value;
    if (value === null) continue;
    const first = Math.max(0, Math.floor((row[1] - row[2] - from) / each));
    const last = Math.min(BINS - 1, Math.ceil((row[1] - from) / each) - 1);
    for (let bin = first; bin <= last; bin++) {
      bins[bin][0] += value * row[2];
      bins[bin][1] += row[2];
    }
  }
  const means = bins.map(([sum, weight]) => (weight ? sum / weight : null));
  const read = means.filter((value) => value !== null);
  const top = unit === "%" ? 100 : Math.max(limit ?? 0, unit === "cores" ? 1 : 0, ...read) || 1;
  const box = el("div", undefined, "lane");
  const shown = latest === null ? (read.length ? "not read now" : "not read") : `${number(latest, unit)} ${unit}`;
  const label = el("div", undefined, "label");
  label.append(el("span", title), el("b", shown), el("small", read.length ? `of ${number(top, unit)} ${unit}` : ""));
  box.append(label);
  const area = draw("svg", { viewBox: `0 0 ${WIDE} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${shown}` });
  area.append(draw("path", { d: outline(means, top), class: "area" }));
  box.append(area);
  return box;
}

const number = (value, unit) => (unit === "cores" ? value.toFixed(2) : String(Math.round(value)));

function outline(means, top) {
  let path = "";
  let open = false;
  means.forEach((mean, bin) => {
    const left = (bin * WIDE) / BINS;
    if (mean === null) {
      if (open) path += `V100Z`;
      open = false;
      return;
    }
    const y = (100 - 98 * Math.min(1, mean / top)).toFixed(1);
    path += open ? `V${y}H${(left + WIDE / BINS).toFixed(1)}` : `M${left.toFixed(1)},100V${y}H${(left + WIDE / BINS).toFixed(1)}`;
    open = true;
  });
  return open ? `${path}V100Z` : path || "M0,100";
}

function part(title, ...children) {
  const made = el("section");
  made.append(el("h3", title), ...children);
  return made;
}

function table(heads, rows) {
  const made = el("table");
  const top = el("tr");
  for (const head of heads) {
    const cell = el("th", head);
    cell.scope = "col";
    top.append(cell);
  }
  const thead = el("thead");
  thead.append(top);
  const tbody = el("tbody");
  for (const row of rows) {
    const line = el("tr");
    for (const cell of row) {
      const made = el("td");
      made.append(name(cell));
      line.append(made);
    }
    tbody.append(line);
  }
  made.append(thead, tbody);
  return made;
}

function evidence({ now }) {
  const flags = now.flags.length ? ` Seen besides: ${now.flags.join(", ")}.` : "";
  const sure = el("p", `Confidence ${now.confidence.toFixed(2)} of 1.${flags}`);
  if (!now.evidence.length) return part("Evidence", sure);
  const made = table(["Signal", "Value", "Test passed"], now.evidence.map((seen) => seen.slice(0, 3)));
  now.evidence.forEach(([, , , meaning], place) => {
    if (meaning) made.tBodies[0].rows[place].cells[0].append(el("small", meaning));
  });
  return part("Evidence", made, sure);
}

function advice({ now }) {
  const list = el("ol");
  for (const step of now.steps) {
    const item = el("li");
    step.split("`").forEach((text, odd) => item.append(odd % 2 ? el("code", text) : text));
    list.append(item);
  }
  return part("Next steps", list, ...(now.normal ? [el("p", `When this is normal: ${now.normal}`, "quiet")] : []));
}

function workloads({ now }) {
  if (!now.workloads.length) return part("Workloads", el("p", "None is known to hold this GPU.", "quiet"));
  const rows = now.workloads.map((each) => [
    each.title, each.owner || "-", `${each.verdict} / ${each.cause}`, `${Math.round(each.share * 100)}\u00a0%`,
  ]);
  const more = now.more ? [el("p", `${now.more} more hold it.`, "quiet")] : [];
  return part("Workloads", table(["Workload", "Owner", "Verdict", "Share"], rows), ...more);
}

function changes(rows, from) {
  const runs = joined(rows, from).reverse();
  const shown = runs.slice(0, 8).map((each) => [clock(each.start), length(each.end - each.start), `${each.verdict} / ${each.cause}`]);
  const more = runs.length > 8 ? [el("p", `${runs.length - 8} earlier ones are in the strip.`, "quiet")] : [];
  return part("Changes", table(["From", "For", "Verdict of the intervals"], shown), ...more);
}

function about(gpu) {
  const list = el("dl", undefined, "plain");
  facts(list, [
    ["Model", gpu.model || "not read", ""],
    ["UUID", gpu.uuid, ""],
    ["Read from", gpu.sources.join(", ") || "nothing", ""],
    ["Signals missing", gpu.missing.join(", ") || "none", ""],
  ]);
  return part("This GPU", list);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) ask();
});
for (const note of page.gpus.querySelectorAll(".note")) note.remove(); // said above from here on
ask();
