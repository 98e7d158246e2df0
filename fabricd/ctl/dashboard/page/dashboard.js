// The dashboard's page: asks for a picture once a second and shows it. docs/dashboard.md.
// Texts of the picture (names of jobs, say) are chosen by clients of the daemon: they get into the
// page as text nodes alone, never as markup.
"use strict";

const kIntervalMs = 1000;
const kTimeoutMs = 8000;
const kMaxRows = 500;
const kMaxPoints = 600;
const kGapMs = 5000;                              // between two points of one line
const kSvg = "http://www.w3.org/2000/svg";
const kPaged = ["jobs", "training", "sessions", "groups", "arenas", "shards", "waiting", "paths"];
const kPalette = ["#1f6feb", "#bf8700", "#8250df", "#1a7f37", "#cf222e", "#0a7ea4", "#bc4c00", "#9a3b8f"];

let picture = null;
let shown = {};                                   // part -> its JSON, as it was drawn last
let curves = { unix_ms: [], series: {} };
let token = "";
let first = {};                                   // list -> its first row, where that is not 0
let chosen = null;                                // the job that was opened, else what has the field's text
let is_reached = true;                            // fabricctl dashboard answers
let asked = "";                                   // which rows were asked for last
let answered = "";                                // which rows the picture has
const colours = new Map();                        // of arenas, by their numbers
let next_colour = 0;
let wake = () => {};                              // ends the pause between two pictures

// ---- Small things ---------------------------------------------------------------------------------

const $ = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function draw(tag, attributes = {}, text = "") {
  const node = document.createElementNS(kSvg, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== "") node.textContent = text;
  return node;
}

// Characters that are not seen, or turn the ones behind them round, by their numbers: a name has to
// look like what it is.
const plain = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
  (one) => "\\u{" + one.codePointAt(0).toString(16).toUpperCase() + "}");

// An unchanged text keeps its node, and with it what a person has selected.
function say(node, text) {
  const shown_text = plain(text);
  if (node.textContent !== shown_text) node.textContent = shown_text;
}

// Parts of a line: texts, or {field, value, text} for those that programs read.
function say_parts(node, parts) {
  const shape = parts.map((part) => part.field || "").join();
  if (node.dataset.shape !== shape) {
    node.replaceChildren(...parts.map((part) => make("span", part.field ? { "data-field": part.field } : {})));
    node.dataset.shape = shape;
  }
  parts.forEach((part, i) => {
    say(node.children[i], part.field ? part.text : part);
    if (part.field) node.children[i].dataset.value = part.value;
  });
}

const kFocusable = "button, summary, a, input, [tabindex]";

// Makes `wanted` the children of `parent`. What stays is not taken out, as the focus, the selection,
// the place in a scrolled list and an open <details> would go with it; where the order is another one,
// the others are moved around the child that has the focus or the selection.
function arrange(parent, wanted) {
  const kept = new Set(wanted);
  const focus = document.activeElement;
  const had_focus = focus !== document.body && parent.contains(focus);
  const place = had_focus ? [...parent.children].findIndex((node) => node.contains(focus)) : -1;
  for (const node of [...parent.children]) if (!kept.has(node)) node.remove();
  const held = had_focus && parent.contains(focus) ? focus : getSelection().anchorNode;
  const pin = held && parent.contains(held) ? wanted.findIndex((node) => node.contains(held)) : -1;
  for (let i = pin - 1; i >= 0; i--) {
    if (wanted[i].nextElementSibling !== wanted[i + 1] || !wanted[i].parentNode) wanted[i + 1].before(wanted[i]);
  }
  for (let i = pin + 1; i < wanted.length; i++) {
    const is_there = wanted[i].parentNode === parent && wanted[i].previousElementSibling === (wanted[i - 1] || null);
    if (!is_there && i === 0) parent.prepend(wanted[i]);
    else if (!is_there) wanted[i - 1].after(wanted[i]);
  }
  if (!had_focus || parent.contains(document.activeElement)) return;
  // What had the focus is gone: the keyboard goes on from there, and not from the top of the page.
  const next = wanted[Math.min(place, wanted.length - 1)];
  const target = (next && (next.matches(kFocusable) ? next : next.querySelector(kFocusable))) || parent.closest("section");
  if (target) target.focus({ preventScroll: true });
}

// The children of `parent` by their keys. Two of one key get different ones.
const children_of = (parent) => new Map([...parent.children].map((node) => [node.dataset.key, node]));
function keys_of(items, key) {
  const seen = new Map();
  return items.map((item) => {
    const one = String(key(item));
    const times = seen.get(one) || 0;
    seen.set(one, times + 1);
    return times === 0 ? one : one + "\n" + times;
  });
}

// As fabricctl writes sizes: exact ones without decimals.
function bytes(value) {
  if (value === null || value === undefined) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = value;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit++; }
  return (Number.isInteger(size) ? String(size) : size.toFixed(1)) + " " + units[unit];
}

function rate(value, digits = 1) {
  return value === null || value === undefined ? "-" : value.toFixed(digits);
}
const percent = (share) => share === null || share === undefined || share < 0 ? "-" : Math.round(100 * share) + " %";

function age(ms) {
  if (ms < 999.95) return (Number.isInteger(ms) ? ms : ms.toFixed(1)) + " ms";
  const seconds = ms / 1000;
  if (seconds < 120) return seconds.toFixed(1) + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return (seconds / 3600).toFixed(1) + " h";
  return Math.floor(seconds / 86400) + " d";
}
// With the day, where it is another one.
function clock(ms) {
  const then = new Date(ms);
  return then.toDateString() === new Date().toDateString() ? then.toLocaleTimeString() : then.toLocaleString();
}

// ---- Tables ---------------------------------------------------------------------------------------

// A column: title, and of an item the text, or a node. `value`: what tests and scripts read, in the
// units of fabricctl --json.
const text = (title, of, extra = {}) => ({ title, of, ...extra });
const number = (title, of, value = of) => ({ title, of, value, number: true });

const count = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, ",");

// A cell keeps its element while its content stays: a screen reader keeps its place, and the browser
// has less to do.
function write(cell, column, item) {
  const content = column.of(item);
  if (content instanceof Node) {
    // One that says the same stays, with the focus.
    const there = cell.firstElementChild;
    if (!there || there.dataset.key !== content.dataset.key) cell.replaceChildren(content);
  } else say(cell, content);
  const classes = [column.number ? "number" : "", column.wide ? "wide" : "", column.mark ? column.mark(item) : ""].filter(Boolean).join(" ");
  if (cell.className !== classes) cell.className = classes;
  if (column.value) cell.dataset.value = column.value(item);
}

// Items beyond kMaxRows are counted and not shown: a browser takes seconds for ten thousand rows. A
// row belongs to `key` of its item. `list`: its name in picture.lists, where it is one that has pages.
function fill(id, caption, columns, items, key, command, list) {
  const table = $(id);
  if (!table.tBodies.length) {
    const head = make("tr");
    for (const column of columns) head.append(make("th", { scope: "col", class: column.number ? "number" : "" }, column.title));
    table.append(make("caption"), make("thead", {}, head), make("tbody"));
    if (!caption) table.setAttribute("aria-labelledby", table.closest("section").getAttribute("aria-labelledby"));
  }
  say(table.caption, caption);
  const body = table.tBodies[0];
  const shown_items = items.slice(0, kMaxRows);
  const counted = list && picture.lists && picture.lists[list] ? picture.lists[list] : { from: 0, matching: items.length };
  const left = Math.max(items.length, counted.matching - counted.from) - shown_items.length;
  const old = children_of(body);
  const keys = keys_of(shown_items, key);
  const rows = shown_items.map((item, i) => {
    const row = old.get(keys[i]) || make("tr", { "data-key": keys[i] }, ...columns.map(() => make("td")));
    columns.forEach((column, c) => write(row.cells[c], column, item));
    return row;
  });
  if (left > 0) {
    const rest = body.querySelector("tr.rest") || make("tr", { class: "rest" }, make("td", { colspan: columns.length }));
    say(rest.firstChild, `and ${left} more: ${command}`);
    rows.push(rest);
  }
  arrange(body, rows);
  table.hidden = items.length === 0;
  table.dataset.rows = counted.matching;
  show_pages(id, list, shown_items.length, command);
}

const caption_of = (id) => $(id).caption ? $(id).caption.textContent : id;

// "showing 500 of 9,500", with the way to the others, where a table has not all rows. The elements stay,
// so that one that has the focus keeps it.
function show_pages(id, list, rows, command) {
  const of = list && picture.lists ? picture.lists[list] : undefined;
  let line = $(id + "-pages");
  const is_needed = Boolean(of) && (of.rows < of.matching || of.from > 0);
  if (!line && !is_needed) return;
  if (!line) {
    const go = (text, to) => {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        if (button.getAttribute("aria-disabled") === "true") return;
        first[list] = to(picture.lists[list]);
        wake();
      });
      return button;
    };
    line = make("p", { id: id + "-pages", class: "pages" }, make("span"),
      go("previous", (now) => Math.max(0, now.from - kMaxRows)), go("next", (now) => now.from + Math.max(now.rows, 1)), make("code", {}, command));
    $(id).parentElement.before(line);
  }
  line.hidden = !is_needed;
  if (!is_needed) return;
  const end = of.from + of.rows;
  const which = of.from === 0 ? count(rows) : `${count(of.from + 1)} to ${count(end)}`;
  const all = of.matching === of.all ? count(of.all) : `${count(of.matching)} that match, of ${count(of.all)}`;
  const [words, previous, next] = line.children;
  say(words, `showing ${which} of ${all}`);
  for (const [button, is_off] of [[previous, of.from === 0], [next, end >= of.matching]]) {
    button.hidden = !kPaged.includes(list);
    button.setAttribute("aria-disabled", is_off);
    button.setAttribute("aria-label", `${button.textContent} ${caption_of(id)}`);
  }
}

// ---- Curves ---------------------------------------------------------------------------------------

// Of those that the page shows; a picture has more, of single jobs.
function remember(fresh) {
  if (fresh.history) {
    curves = { unix_ms: fresh.history.unix_ms, series: {} };
    for (const name of ["pool_used_bytes", "sessions", "samples_per_s"]) {
      if (name in fresh.history.series) curves.series[name] = fresh.history.series[name];
    }
    return;
  }
  if (curves.unix_ms[curves.unix_ms.length - 1] === fresh.unix_ms) return;   // other rows of the same picture
  curves.unix_ms.push(fresh.unix_ms);
  const now = { "pool_used_bytes": fresh.status.pool.used_bytes, "sessions": fresh.status.sessions };
  if (fresh.totals.live > 0) now["samples_per_s"] = fresh.totals.samples_per_s;
  const points = curves.unix_ms.length;
  for (const name of Object.keys(now)) {
    if (!(name in curves.series)) curves.series[name] = new Array(points - 1).fill(null);
  }
  for (const [name, values] of Object.entries(curves.series)) values.push(name in now ? now[name] : null);
  if (points <= kMaxPoints) return;
  curves.unix_ms.shift();
  for (const [name, values] of Object.entries(curves.series)) {
    values.shift();
    if (values.every((value) => value === null)) delete curves.series[name];
  }
}

// In a box of 600 x 80, a second a unit; a gap where nothing was measured, or the daemon was away.
function curve(id, values, high) {
  const moments = curves.unix_ms;
  const lines = [];
  let points = [];
  const end = moments[moments.length - 1];
  for (let i = 0; i < moments.length; i++) {
    const was_away = i > 0 && moments[i] - moments[i - 1] > kGapMs;
    if (values[i] === null || was_away) {
      if (points.length) lines.push(points);
      points = [];
    }
    if (values[i] === null) continue;
    const x = 600 - (end - moments[i]) / 1000;
    const y = 78 - 76 * (high > 0 ? values[i] / high : 0);
    points.push(x.toFixed(1) + "," + y.toFixed(1));
  }
  if (points.length) lines.push(points);
  $(id).replaceChildren(...lines.map((line) => draw("polyline", { points: line.join(" ") })));
}

function show_curves() {
  if (curves.unix_ms.length === 0) return;
  const used = curves.series["pool_used_bytes"] || [];
  const capacity = picture.status.pool.capacity_bytes;
  curve("pool-curve", used, capacity);
  say($("pool-curve-text"), "used, of " + bytes(capacity) + ", last ten minutes");
  const total = curves.series["samples_per_s"] || curves.unix_ms.map(() => null);
  const high = Math.max(...total.map((value) => value || 0), 0);
  curve("jobs-curve", total, high);
  const last = total[total.length - 1];
  say($("jobs-curve-text"), last === null ? "no job reports samples"
    : rate(last, 0) + " samples/s of all jobs, at most " + rate(high, 0) + " in the last ten minutes");
}

// How much of what readers ask for the data caches have.
function show_caches(caches) {
  const found = (c) => c.hits + c.misses > 0 ? percent(c.hits / (c.hits + c.misses)) : "-";
  fill("caches", "Data caches", [
    text("Cache", (c) => c.name), number("Readers", (c) => c.readers), number("Hits", (c) => c.hits), number("Misses", (c) => c.misses),
    text("Hit rate", found), number("Stall", (c) => age(c.stall_ns * 1e-6), (c) => c.stall_ns),
    number("Used", (c) => bytes(c.bytes_used), (c) => c.bytes_used), number("Quota", (c) => bytes(c.quota_bytes), (c) => c.quota_bytes),
    number("Going to", (c) => c.target_bytes < c.quota_bytes ? bytes(c.target_bytes) : "-", (c) => c.target_bytes),
    number("Fetched again", (c) => bytes(c.bytes_refetched), (c) => c.bytes_refetched),
    number("Of it near", (c) => bytes(c.bytes_refetched_near), (c) => c.bytes_refetched_near)], caches, (c) => c.arena_id + " " + c.name, "fabricctl status", "caches");
  say($("data-text"), caches.length === 0 ? "none (no fabric-data serves from this pool)" : "");
}

// ---- Views ----------------------------------------------------------------------------------------

const views = {
  status(status) {
    say($("version"), status.version);
    const alarms = $("alarms");
    alarms.hidden = status.alarms.length === 0;
    const old = children_of(alarms);
    arrange(alarms, keys_of(status.alarms, (alarm) => alarm).map((key, i) => {
      const node = old.get(key) || make("li", { "data-key": key });
      say(node, status.alarms[i]);
      return node;
    }));
    const pool = status.pool;
    say_parts($("pool-text"), [{ field: "used_bytes", value: pool.used_bytes, text: bytes(pool.used_bytes) }, " of ",
      { field: "capacity_bytes", value: pool.capacity_bytes, text: bytes(pool.capacity_bytes) },
      ` used: ${pool.backend}, ${pool.description}${pool.machine ? "; emulates " + pool.machine : ""}`]);
    show_caches(status.caches);
  },

  arenas(arenas) {
    const capacity = picture.status.pool.capacity_bytes;
    const bar = $("pool-bar");
    let x = 0;
    // An arena keeps its colour when another one goes; the next one gets another.
    const ids = new Set(arenas.map((arena) => arena.id));
    for (const id of colours.keys()) if (!ids.has(id)) colours.delete(id);
    for (const id of ids) if (!colours.has(id)) colours.set(id, kPalette[next_colour++ % kPalette.length]);
    bar.replaceChildren(...arenas.slice(0, kMaxRows).map((arena) => {
      const width = 1000 * arena.bytes_committed / Math.max(capacity, 1);
      const box = draw("rect", { x: x.toFixed(2), y: 0, width: width.toFixed(2), height: 30, fill: colours.get(arena.id) });
      box.append(draw("title", {}, plain(arena.name) + ": " + bytes(arena.bytes_committed)));
      x += width;
      return box;
    }));
    const of = (picture.lists && picture.lists.arenas) || { rows: arenas.length, all: arenas.length };
    const rest = picture.status.pool.used_bytes - arenas.reduce((sum, arena) => sum + arena.bytes_committed, 0);
    if (of.rows < of.all && rest > 0) {
      const width = 1000 * rest / Math.max(capacity, 1);
      const box = draw("rect", { x: x.toFixed(2), y: 0, width: width.toFixed(2), height: 30, class: "rest" });
      box.append(draw("title", {}, `${count(of.all - of.rows)} other arenas: ${bytes(rest)}`));
      bar.append(box);
    }
    fill("arenas", "Arenas", [
      text("Name", (a) => a.name), number("Id", (a) => a.id), number("User", (a) => a.uid),
      number("Size", (a) => bytes(a.bytes), (a) => a.bytes),
      number("Committed", (a) => bytes(a.bytes_committed), (a) => a.bytes_committed),
      number("Used", (a) => bytes(a.bytes_used), (a) => a.bytes_used),
      number("Quarantined", (a) => bytes(a.bytes_quarantined), (a) => a.bytes_quarantined),
      number("Sessions", (a) => a.sessions)], arenas, (a) => a.id, "fabricctl arenas", "arenas");
  },

  cluster(cluster) {
    fill("hosts", "Hosts of cluster " + cluster.cluster + (cluster.trouble ? ": " + cluster.trouble : ""), [
      text("Host", (h) => h.name + (h.self ? " *" : "")),
      text("State", (h) => h.state, { mark: (h) => h.state === "up" ? "good" : h.state === "listed" ? "soft" : "bad" }),
      number("Since", (h) => age(h.state_ms), (h) => h.state_ms), number("Incarnation", (h) => h.incarnation),
      text("Pool", (h) => h.pool), text("Fence", (h) => h.fence)], cluster.hosts, (h) => h.name, "fabricctl hosts", "hosts");
  },

  devices(devices) {
    fill("devices", "Devices of the device file", [
      text("Device", (d) => d.name), text("Kind", (d) => d.kind), number("GFLOP/s", (d) => rate(d.gflops, 0), (d) => d.gflops),
      number("Share", (d) => d.vgpu_share_percent + " %", (d) => d.vgpu_share_percent),
      number("Quota", (d) => bytes(d.vgpu_memory_bytes), (d) => d.vgpu_memory_bytes),
      number("Used", (d) => bytes(d.bytes_used), (d) => d.bytes_used),
      number("Refused", (d) => bytes(d.bytes_denied), (d) => d.bytes_denied),
      number("Link", (d) => rate(d.link_gbytes_per_s) + " GB/s, " + d.link_latency_ns + " ns", (d) => d.link_gbytes_per_s),
      text("Faults", (d) => d.faults || "none", { mark: (d) => d.faults ? "bad" : "soft" })], devices, (d) => d.name, "fabricctl devices", "devices");
  },

  shards(shards) {
    fill("shards", "Shards", [
      text("Shard", (s) => s.name), text("State", (s) => s.state), number("Size", (s) => bytes(s.bytes), (s) => s.bytes),
      text("Home", (s) => s.home_arena + (s.home_device ? " on " + s.home_device : "")),
      number("Readers", (s) => s.readers), number("Moves", (s) => s.moves)], shards, (s) => s.arena_id + " " + s.id + " " + s.name, "fabricctl shards", "shards");
  },

  waiting(waiting) {
    const pids = (w) => w.late.map((late) => late.rank + (late.pid ? " (pid " + late.pid + ")" : "")).join(", ");
    fill("waiting", "Late ranks", [
      text("Arena", (w) => w.arena), text("Group", (w) => w.group), text("Operation", (w) => w.operation),
      number("Size", (w) => bytes(w.bytes), (w) => w.bytes), number("Waited", (w) => age(w.waited_ms), (w) => w.waited_ms),
      text("Ranks waiting", (w) => w.waiting_ranks.join(", ")), text("Ranks late", pids, { mark: () => "bad" })],
      waiting, (w) => [w.arena_id, w.group_id, w.arena, w.group, w.operation].join("\n"), "fabricctl waiting", "waiting");
  },

  vgpus(vgpus) {
    fill("vgpu-list", "", [
      text("vGPU", (v) => v.name), text("GPU", (v) => v.gpu), number("Quota", (v) => bytes(v.quota_bytes), (v) => v.quota_bytes),
      number("Going to", (v) => v.target_bytes < v.quota_bytes ? bytes(v.target_bytes) : "-", (v) => v.target_bytes),
      number("Used", (v) => bytes(v.used_bytes), (v) => v.used_bytes), number("Peak", (v) => bytes(v.peak_bytes), (v) => v.peak_bytes),
      number("Share", (v) => v.share_percent + " %", (v) => v.share_percent),
      number("Refused", (v) => v.denied + " (" + bytes(v.denied_bytes) + ")", (v) => v.denied),
      number("Processes", (v) => v.processes.length)], vgpus, (v) => v.name, "fabricctl vgpus", "vgpus");
    say($("vgpu-text"), vgpus.length === 0 ? "none (the device file names none)" : "");
  },

  events(events) {
    fill("event-list", "", [
      text("Time", (e) => clock(e.unix_ms)),
      text("Level", (e) => e.level, { mark: (e) => e.level === "error" ? "bad" : e.level === "warning" ? "warn" : "soft" }),
      text("What", (e) => e.text, { wide: true })], [...events].reverse(), (e) => e.number, "fabricctl events", "events");
  },

  decisions(decisions) {
    const list = $("decision-list");
    const old = children_of(list);
    arrange(list, [...decisions].reverse().map((decision) => {
      const id = String(decision.id);
      const node = old.get(id) || make("details", { "data-key": id, "data-id": id }, make("summary"), make("pre", { tabindex: 0, role: "group", "aria-label": "why " + id }));
      const gain = decision.gain_share > 0 ? `, ${(100 * decision.gain_share).toFixed(1)} % promised` : "";
      say(node.firstChild, `${id} ${clock(decision.unix_ms)} ${decision.kind}: ${decision.reason}${gain}: ${decision.outcome}`);
      // Of several lines, each with its own characters shown.
      const why = decision.why.split("\n").map(plain).join("\n");
      if (node.lastChild.textContent !== why) node.lastChild.textContent = why;
      return node;
    }));
    say($("decision-text"), decisions.length === 0 ? "none yet (control.mode)" : "");
  },
};

// Of all sessions, whatever rows there are.
function show_totals() {
  const totals = picture.totals;
  const field = (name) => ({ field: name, value: totals[name], text: count(totals[name]) });
  const slowest = totals.slowest_session === null ? "" : `, the slowest is session ${totals.slowest_session} with ${age(1000 * totals.slowest_work_s)} of work in a step`;
  say_parts($("jobs-text"), [field("sessions"), " sessions of ", field("jobs"), " jobs: ", field("live"), " live, ", field("stale"), " stale, ",
    field("away"), " away" + slowest]);
}

const name_of = (job) => job.label === "" ? "(no label)" : plain(job.label);

// The name of a job is a way to what is of it: all jobs may have a label in common, and users labels.
function job_button(job) {
  const key = job.uid + " " + job.label;
  const button = make("button", { type: "button", "data-key": key, class: "job" }, name_of(job));
  button.addEventListener("click", () => {
    $("filter").value = job.label;
    filter({ label: job.label, uid: job.uid });
  });
  return button;
}

// What is shown: of one job, of what has the text of the field (job: null), or all.
function filter(job) {
  chosen = job;
  first = {};
  wake();
}

function show_all() {
  $("filter").value = "";
  $("filter").focus();                            // the button that was pressed goes
  filter(null);
}

// What the rows are of, as the picture says: it may be one of the question before.
function show_filter() {
  const of_job = picture.user !== null && picture.user !== undefined;
  const is_on = of_job || Boolean(picture.match);
  const lists = picture.lists || {};
  const hits = kPaged.reduce((sum, list) => sum + (lists[list] ? lists[list].matching : 0), 0);
  const what = of_job ? `job ${name_of({ label: picture.match })} of user ${picture.user}` : `"${picture.match}"`;
  say($("filtered-text"), !is_on ? "" : hits === 0 ? `Nothing matches ${what}.` : of_job ? `Only what is of ${what}.` : `Only what matches ${what}.`);
  $("filtered").hidden = !is_on;
}

// Of the parts of telemetry, which change with every sample.
function show_telemetry() {
  const training = picture.telemetry.training;
  const shares = (one) => {
    const words = ["compute", "wait", "comm"].map((part) => part + " " + percent(one[part + "_share"])).join(", ");
    const bar = draw("svg", { class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": words, "data-key": words });
    let x = 0;
    for (const part of ["compute", "wait", "comm"]) {
      const width = 100 * Math.max(0, one[part + "_share"] || 0);
      bar.append(draw("rect", { class: part, x: x.toFixed(1), y: 0, width: width.toFixed(1), height: 10 }));
      x += width;
    }
    return bar;
  };
  show_totals();
  fill("job-list", "Jobs", [
    text("Job", job_button), number("User", (j) => j.uid), number("Sessions", (j) => j.sessions), number("Away", (j) => j.away, (j) => j.away), number("Live", (j) => j.live),
    { ...number("Stale", (j) => j.stale), mark: (j) => j.stale_ranks > 0 && j.live > 0 ? "bad" : "" },
    number("Samples/s", (j) => rate(j.samples_per_s, 0), (j) => j.samples_per_s), number("Wait", (j) => percent(j.wait_share), (j) => j.wait_share),
    number("Memory", (j) => bytes(j.memory_used_bytes), (j) => j.memory_used_bytes),
    number("Refused", (j) => bytes(j.memory_denied_bytes), (j) => j.memory_denied_bytes),
    text("Slowest", (j) => j.slowest_session === null ? "-" : `session ${j.slowest_session}, ${age(1000 * j.slowest_work_s)}`)],
    picture.jobs, (j) => j.uid + " " + j.label, "fabricctl top", "jobs");
  fill("training", "Training", [
    text("Job", (t) => t.label), number("User", (t) => t.uid), text("Rank", (t) => t.member ? t.rank + "/" + t.world : "-"), number("Session", (t) => t.session),
    text("Device", (t) => t.device || "-"), number("Steps", (t) => t.steps), number("Steps/s", (t) => rate(t.steps_per_s), (t) => t.steps_per_s),
    number("Samples/s", (t) => rate(t.samples_per_s, 0), (t) => t.samples_per_s), text("Time", shares),
    number("Wait", (t) => percent(t.wait_share), (t) => t.wait_share), number("Share", (t) => percent(t.share_of_group), (t) => t.share_of_group),
    number("Loss", (t) => t.loss === null ? "-" : t.loss.toPrecision(4), (t) => t.loss),
    text("State", (t) => t.stale ? "stale" : "live", { mark: (t) => t.stale ? "bad" : "good" })], training, (t) => t.session, "fabricctl top", "training");
  fill("load", "Load", [
    text("Device", (d) => d.name), number("Busy", (d) => percent(d.busy), (d) => d.busy),
    number("Memory", (d) => bytes(d.memory_total_bytes), (d) => d.memory_total_bytes),
    number("Used", (d) => bytes(d.memory_used_bytes), (d) => d.memory_used_bytes), text("What", (d) => d.description)],
    picture.telemetry.devices, (d) => d.name, "fabricctl top", "load");
  fill("paths", "Measured paths between ranks", [
    number("Group", (p) => p.group), number("From", (p) => p.from), number("To", (p) => p.to),
    number("GB/s", (p) => rate(p.bytes_per_s * 1e-9), (p) => p.bytes_per_s),
    number("Slow GB/s", (p) => rate(p.slow_bytes_per_s * 1e-9), (p) => p.slow_bytes_per_s),
    number("Latency", (p) => rate(p.latency_ns, 0) + " ns", (p) => p.latency_ns)], picture.telemetry.paths, (p) => [p.group, p.from, p.to].join(), "fabricctl top", "paths");
  fill("groups", "Groups", [
    text("Group", (g) => g.name), number("Arena", (g) => g.arena_id), number("Ranks", (g) => g.joined + "/" + g.world, (g) => g.joined),
    number("Epoch", (g) => g.epoch), text("State", (g) => g.state, { mark: (g) => g.state === "broken" ? "bad" : g.state === "complete" ? "good" : "" }),
    text("Dead ranks", (g) => g.dead_ranks.join(", ") || "-", { mark: (g) => g.dead_ranks.length ? "bad" : "soft" })],
    picture.groups, (g) => [g.arena_id, g.id, g.name].join(), "fabricctl groups", "groups");
  fill("sessions", "Sessions", [
    number("Session", (s) => s.id), number("Pid", (s) => s.pid), number("User", (s) => s.uid), text("Label", (s) => s.label),
    number("Age", (s) => age(s.age_ms), (s) => s.age_ms), number("Owns", (s) => bytes(s.bytes_owned), (s) => s.bytes_owned),
    text("Device", (s) => s.device || "-"), text("State", (s) => s.connected ? "connected" : "away", { mark: (s) => s.connected ? "" : "warn" })],
    picture.sessions, (s) => s.id, "fabricctl sessions", "sessions");
}

// As many as there is room for, those with a fault first; the last box says how many there are besides.
function some_of(boxes, list) {
  const kBoxes = 32;
  const all = picture.lists && picture.lists[list] ? Math.max(picture.lists[list].all, boxes.length) : boxes.length;
  if (all <= kBoxes) return boxes;
  const some = [...boxes.filter((box) => box.fault), ...boxes.filter((box) => !box.fault)].slice(0, kBoxes - 1);
  return [...some, { name: `${count(all - some.length)} more`, fault: false, link: "" }];
}

// A row of hosts, one of nodes, one of devices; links carry what the device file or the machine says.
function show_machine() {
  const svg = $("machine");
  const hosts = picture.cluster.hosts.length ? picture.cluster.hosts.map((host) => ({ name: host.name, fault: host.state !== "up" && host.state !== "listed" }))
    : [{ name: "this host", fault: false }];
  const devices = picture.devices.length ? picture.devices.map((device) => ({
    name: device.name, fault: Boolean(device.faults), link: rate(device.link_gbytes_per_s) + " GB/s" }))
    : picture.telemetry.devices.map((device) => ({ name: device.name, fault: device.stale, link: percent(device.busy) }));
  const rows = [some_of(hosts, "hosts"), [{ name: "pool: " + picture.status.pool.backend, fault: false }], some_of(devices, picture.devices.length ? "devices" : "load")];
  const drawn = JSON.stringify(rows);
  if (svg.dataset.drawn === drawn) return;
  svg.dataset.drawn = drawn;
  const step = 96;
  const width = Math.max(400, step * Math.max(...rows.map((row) => row.length)));
  svg.setAttribute("viewBox", `0 0 ${width} 190`);
  svg.setAttribute("width", width);
  const place = (row, i) => (i + 0.5) * width / rows[row].length;
  const nodes = [];
  rows[0].forEach((_, i) => nodes.push(draw("line", { x1: place(0, i), y1: 38, x2: place(1, 0), y2: 78 })));
  rows[2].forEach((device, i) => {
    nodes.push(draw("line", { x1: place(1, 0), y1: 106, x2: place(2, i), y2: 146 }));
    nodes.push(draw("text", { x: (place(1, 0) + 3 * place(2, i)) / 4, y: 136, "text-anchor": "middle" }, device.link));
  });
  rows.forEach((row, r) => row.forEach((one, i) => {
    const y = 10 + 68 * r;
    nodes.push(draw("rect", { x: place(r, i) - 44, y, width: 88, height: 28, rx: 4, class: one.fault ? "fault" : "" }));
    const letters = [...plain(one.name)];          // a letter may be two units of a text
    const label = letters.length > 13 ? letters.slice(0, 12).join("") + "…" : letters.join("");
    const node = draw("text", { x: place(r, i), y: y + 18, "text-anchor": "middle" }, label);
    node.append(draw("title", {}, plain(one.name)));
    nodes.push(node);
  }));
  svg.replaceChildren(...nodes);
}

// A list that is cut off can be scrolled by the keyboard, and has a name then.
function show_scrolled() {
  for (const box of document.querySelectorAll(".scroll")) {
    const is_cut = box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1;
    if (is_cut === box.hasAttribute("tabindex")) continue;
    if (is_cut) {
      const table = box.firstElementChild;
      const name = (table.caption && table.caption.textContent) || box.closest("section").querySelector("h2").firstChild.textContent.trim();
      box.setAttribute("tabindex", "0");
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", name);
    } else if (box !== document.activeElement) {
      for (const attribute of ["tabindex", "role", "aria-label"]) box.removeAttribute(attribute);
    }
  }
}

const kListOf = { cluster: "hosts", status: "caches" };

function show_state() {
  const daemon = picture.daemon;
  document.body.classList.toggle("away", !daemon.answers);
  const status = picture.status;
  const line = daemon.answers
    ? (status.draining ? "draining, " : "") + `pid ${status.pid}, up ${age(status.uptime_ms)}, ${status.sessions} sessions`
    : `${daemon.error} (since ${clock(daemon.since_unix_ms)}; what is shown is the last that was known)`;
  say_state(line, daemon.answers ? "fabricd answers" + (status.draining ? ", draining" : "") : line, !daemon.answers);
}

// `aloud` is what a screen reader reads out: what is shown changes each second.
function say_state(line, aloud, is_away) {
  $("state").className = is_away ? "away" : "";
  say($("state"), line);
  say($("aloud"), aloud);
}

function show(fresh) {
  picture = fresh;
  if (!picture.status) {                      // no daemon so far
    say_state(picture.daemon.error, picture.daemon.error, true);
    return;
  }
  show_state();
  if (picture.daemon.answers) remember(picture);
  for (const [part, view] of Object.entries(views)) {
    const now = JSON.stringify([picture[part], picture.lists && picture.lists[kListOf[part] || part]]);
    if (shown[part] === now) continue;
    view(picture[part]);
    shown[part] = now;
  }
  show_filter();
  show_telemetry();
  show_machine();
  show_curves();
  show_scrolled();
  document.body.dataset.number = picture.number;
}

// ---- Polling --------------------------------------------------------------------------------------

function unreachable(why) {
  is_reached = false;
  document.body.classList.add("away");
  say_state(why, why, true);
}

// Which rows are wanted.
function question() {
  const parts = [];
  const wanted = chosen ? chosen.label : $("filter").value.toWellFormed();
  if (wanted) parts.push("match=" + encodeURIComponent(wanted));
  if (chosen) parts.push("user=" + chosen.uid);
  for (const [list, from] of Object.entries(first)) {
    if (from > 0) parts.push(list + "=" + from);
  }
  return parts.join("&");
}

async function poll() {
  asked = question();
  const parts = asked ? [asked] : [];
  // Of other rows the same picture is wanted again: then the number is that of the one before.
  if (picture && curves.unix_ms.length) parts.unshift("since=" + (asked === answered ? picture.number : picture.number - 1));
  const rows = asked;
  const answer = await fetch("/api/v1/picture" + (parts.length ? "?" + parts.join("&") : ""),
    { headers: { "X-Fabric-Token": token }, cache: "no-store", signal: AbortSignal.timeout(kTimeoutMs) });
  if (!answer.ok && answer.status !== 304) { unreachable(await answer.text() || `fabricctl dashboard answers ${answer.status}`); return; }
  const was_reached = is_reached;
  is_reached = true;
  if (answer.status === 304) {
    if (!was_reached && picture.status) show_state();
    return;
  }
  const fresh = await answer.json();
  answered = rows;
  // A list that has become shorter begins where the picture says.
  for (const list of Object.keys(first)) {
    if (fresh.lists && fresh.lists[list] && rows === question()) first[list] = fresh.lists[list].from;
  }
  show(fresh);
}

async function run() {
  const given = new URLSearchParams(location.hash.slice(1)).get("t");
  if (given) {
    sessionStorage.setItem("fabric-token", given);
    history.replaceState(null, "", location.pathname);   // out of sight, and of bookmarks
  }
  token = sessionStorage.getItem("fabric-token") || "";
  $("filter").addEventListener("input", () => filter(null));
  // Wherever the focus is: after a click on a job it is on its button.
  document.addEventListener("keydown", (pressed) => { if (pressed.key === "Escape" && (chosen || $("filter").value)) show_all(); });
  $("filter-clear").addEventListener("click", show_all);
  document.addEventListener("visibilitychange", () => wake());
  for (;;) {
    const begun = Date.now();
    try {
      // A page that is not seen does not need to be drawn.
      if (!document.hidden || picture === null) await poll();
    } catch (bad) {
      unreachable("fabricctl dashboard does not answer (" + (bad.name === "TimeoutError" ? "timeout" : "it has ended, or the way to it is gone") + ")");
    }
    // Other rows may be wanted since.
    const pause = asked === question() ? Math.max(100, kIntervalMs - (Date.now() - begun)) : 0;
    await new Promise((next) => { wake = next; setTimeout(next, pause); });
  }
}

run();
