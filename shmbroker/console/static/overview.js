// The family at work: its processes and rings drawn, what goes through it, how long requests take.

import { bytes, duration, h, number, put, rate, s, table } from "./dom.js";
import { every, get } from "./live.js";

const DRAWN_MAX = 8;
const BOX = { width: 142, height: 44 };

export async function show(main, { signal }) {
  const tiles = h("div", { class: "tiles" });
  const notes = h("div", null);
  const drawing = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Processes and rings" });
  const latencies = h("div", null), processes = h("div", null), rings = h("div", null), brokers = h("div", null);
  main.append(h("h1", null, "Overview"), notes, tiles,
    h("h2", null, "Processes and rings"), drawing,
    h("h2", null, "Requests"), latencies,
    h("h2", null, "Brokers"), brokers,
    h("h2", null, "Processes"), processes,
    h("details", null, h("summary", null, h("b", null, "Rings in numbers")), rings));
  let before = null;
  await every(1000, async () => {
    const now = await get("snapshot", null, signal);
    const seconds = before ? now.monotonic_s - before.monotonic_s : 0;
    put(notes, ...now.reasons_not_ready.map((reason) => h("div", { class: "note bad" }, reason)));
    put(tiles, ...tilesOf(now, before, seconds));
    put(drawing, draw(now, before, seconds));
    put(latencies, latencyTable(now, before, seconds));
    put(brokers, table(
      [["Broker", "right"], ["Address", ""], ["State", ""], ["Leads", "right"], ["Replicas", "right"], ["Under-replicated", "right optional"], ["Log directory", "break optional"]],
      now.brokers.map((each) => [each.number, `${each.host}:${each.port}`,
        each.is_active ? "serves" : each.is_fenced ? "fenced" : "not there",
        number(each.leaders), number(each.replicas), number(each.under_replicated), each.log_directory]),
      "Brokers"));
    put(processes, processTable(now, before, seconds));
    put(rings, table(
      [["From", ""], ["To", ""], ["Used", "right"], ["Capacity", "right"], ["Through it", "right"]],
      now.rings.map((each, at) => [each.writer, each.reader, bytes(each.used_bytes), bytes(each.capacity_bytes), perSecond(each.written_bytes, before && before.rings[at]?.written_bytes, seconds)]),
      "Rings"));
    before = now;
  }, signal);
}

function counted(snapshot, name) {
  return snapshot.processes.reduce((sum, each) => sum + (each.counted[name] || 0), 0);
}

function perSecond(now, before, seconds) {
  return seconds > 0 && before !== undefined && before !== null ? bytes(Math.max(0, now - before) / seconds) + "/s" : "–";
}

function tilesOf(now, before, seconds) {
  const grown = (pick) => (before && seconds > 0 ? Math.max(0, pick(now) - pick(before)) / seconds : null);
  const records = (snapshot) => snapshot.topics.reduce((sum, each) => sum + each.records, 0);
  const requests = (snapshot) => snapshot.latencies.filter((each) => !each.is_stage)
    .reduce((sum, each) => sum + each.counts.reduce((some, count) => some + count, 0), 0);
  const tile = (value, name) => h("div", { class: "tile" }, h("b", null, value), h("span", { class: "quiet" }, name));
  return [
    tile(rate(grown(records)), "records/s in"),
    tile(bytes(grown((each) => counted(each, "received_bytes"))) + "/s", "from clients"),
    tile(bytes(grown((each) => counted(each, "sent_bytes"))) + "/s", "to clients"),
    tile(rate(grown(requests)), "requests/s"),
    tile(number(now.processes.reduce((sum, each) => sum + each.connections, 0)), "connections"),
    tile(number(now.topics.length + now.topics_left_out), "topics"),
    tile(number(now.lag), `records of lag, ${now.groups} groups`),
    tile(duration(now.up_s), "since the start"),
  ];
}

// ── the drawing ───────────────────────────────────────────────────────────────────────────────

function cpuOf(process, before, seconds) {
  const was = before?.processes[process.slot]?.usage, now = process.usage;
  if (!was || !now || seconds <= 0) return null;
  const cpu = (usage) => usage.cpu_user_s + usage.cpu_system_s;
  return Math.max(0, cpu(now) - cpu(was)) / seconds;
}

function resident(process) {
  return process.usage ? process.usage.anonymous_bytes + process.usage.file_bytes + process.usage.shared_bytes : null;
}

function kindOf(process) {
  if (process.state === "unable" || process.disk !== "room" || process.silence_s > 5) return "bad";
  if (!process.pid) return process.role === "cleaner" ? "off" : "bad";
  return process.state === "running" ? "" : "warn";
}

function draw(now, before, seconds) {
  const of = (...roles) => now.processes.filter((each) => roles.includes(each.role));
  const columns = [
    of("network-worker"), of("io-worker"),
    [...of("controller"), ...of("cleaner", "tier")],
    of("supervisor", "metrics", "console"),
  ];
  const drawn = columns.map((column) => column.slice(0, DRAWN_MAX));
  const tallest = Math.max(...drawn.map((column) => column.length));
  const height = 40 + tallest * (BOX.height + 14);
  const width = 90 + columns.length * 190;
  const places = new Map();
  drawn.forEach((column, x) => column.forEach((each, y) => {
    const room = (height - 40) / column.length;
    places.set(each.title, { x: 90 + x * 190, y: 30 + room * y + (room - BOX.height) / 2, each });
  }));
  const parts = [];
  const clients = { x: 8, y: height / 2 - 14 };
  parts.push(s("text", { x: clients.x, y: clients.y + 18 }, "clients"));
  for (const { x, y, each } of places.values()) {
    if (each.role !== "network-worker") continue;
    parts.push(s("path", { class: each.connections ? "ring flows" : "ring", d: `M54 ${clients.y + 14}C70 ${clients.y + 14} 70 ${y + BOX.height / 2} ${x} ${y + BOX.height / 2}` }));
  }
  const names = ["network workers", "I/O workers", "controllers, helpers", "supervisor, pages"];
  columns.forEach((column, x) => parts.push(s("text", { class: "quiet", x: 90 + x * 190, y: 16 },
    names[x] + (column.length > DRAWN_MAX ? `, ${column.length - DRAWN_MAX} more` : ""))));
  now.rings.forEach((ring, at) => {
    const from = places.get(ring.writer), to = places.get(ring.reader);
    if (!from || !to) return;
    parts.push(ringLine(ring, before?.rings[at], seconds, from, to));
  });
  for (const { x, y, each } of places.values()) parts.push(box(each, x, y, before, seconds));
  const label = now.processes.map((each) => `${each.title} ${each.state}`).join(", ");
  return s("svg", { class: "family", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parts);
}

function ringLine(ring, was, seconds, from, to) {
  const flow = was && seconds > 0 ? Math.max(0, ring.written_bytes - was.written_bytes) / seconds : 0;
  const share = ring.used_bytes / ring.capacity_bytes;
  const isForward = from.x < to.x;
  const shift = isForward ? -5 : 5;
  const y1 = from.y + BOX.height / 2 + shift, y2 = to.y + BOX.height / 2 + shift;
  let path;
  if (from.x === to.x) {
    const out = from.x + BOX.width;
    path = `M${out} ${y1}C${out + 26} ${y1} ${out + 26} ${y2} ${out} ${y2}`;
  } else {
    const x1 = isForward ? from.x + BOX.width : from.x, x2 = isForward ? to.x : to.x + BOX.width;
    const half = (x1 + x2) / 2;
    path = `M${x1} ${y1}C${half} ${y1} ${half} ${y2} ${x2} ${y2}`;
  }
  const wide = 1.2 + Math.min(5, Math.log10(1 + flow / 1000) * 1.3);
  const kind = (flow > 0 ? " flows" : "") + (share > 0.5 ? " fills" : "");
  const line = s("path", { class: "ring" + kind, d: path, "stroke-width": wide.toFixed(1) },
    s("title", null, `${ring.writer} → ${ring.reader}: ${bytes(flow)}/s, ${Math.round(share * 100)} % of ${bytes(ring.capacity_bytes)} used`));
  line.style.strokeWidth = wide.toFixed(1);
  return line;
}

function box(process, x, y, before, seconds) {
  const cpu = cpuOf(process, before, seconds);
  const facts = process.pid
    ? `${cpu === null ? "–" : Math.round(cpu * 100) + " %"} · ${bytes(resident(process))}`
    : process.role === "cleaner" ? "when it is needed" : process.state;
  return s("g", null,
    s("rect", { class: "box " + kindOf(process), x, y, width: BOX.width, height: BOX.height, rx: 7 }),
    s("text", { x: x + 10, y: y + 18 }, process.title),
    s("text", { class: "quiet", x: x + 10, y: y + 35 }, facts),
    s("title", null, `${process.title}, pid ${process.pid}: ${process.state}${process.work ? ", " + process.work : ""}, restarted ${process.restarts} times`));
}

// ── tables ────────────────────────────────────────────────────────────────────────────────────

function processTable(now, before, seconds) {
  return table(
    [["Process", ""], ["State", ""], ["pid", "right optional"], ["CPU", "right"], ["Memory", "right"], ["Threads", "right optional"], ["Files", "right optional"], ["Restarts", "right"], ["Boot", "right optional"]],
    now.processes.map((each) => {
      const cpu = cpuOf(each, before, seconds);
      return [each.title, each.pid || each.role !== "cleaner" ? each.state + (each.work ? `, ${each.work}` : "") : "not needed yet",
        each.pid || "–", cpu === null ? "–" : (cpu * 100).toFixed(cpu < 0.1 ? 1 : 0) + " %", bytes(resident(each)),
        number(each.usage?.threads), number(each.usage?.open_files), number(each.restarts), duration(each.boot_s)];
    }), "Processes in numbers");
}

/** The time below which a share of the counts lies: counts[n] took less than 2**n microseconds. */
export function quantile(counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let seen = 0;
  for (let at = 0; at < counts.length; at += 1) {
    seen += counts[at];
    if (seen >= share * total) return 2 ** at / 1e6;
  }
  return null;
}

function latencyTable(now, before, seconds) {
  const sums = new Map();
  const add = (snapshot, sign) => {
    for (const each of snapshot.latencies) {
      const name = (each.is_stage ? "stage " : "") + each.name;
      const found = sums.get(name) || { isStage: each.is_stage, all: each.counts.map(() => 0), recent: each.counts.map(() => 0) };
      each.counts.forEach((count, at) => {
        found.recent[at] += sign * count;
        if (sign > 0) found.all[at] += count;
      });
      sums.set(name, found);
    }
  };
  add(now, 1);
  if (before) add(before, -1);
  const rows = [...sums].filter(([, each]) => each.all.some(Boolean))
    .sort((a, b) => a[1].isStage - b[1].isStage || b[1].all.reduce((x, y) => x + y) - a[1].all.reduce((x, y) => x + y));
  return table(
    [["Request or stage", ""], ["per second", "right"], ["p50", "right"], ["p99", "right"], ["p99 ever", "right optional"], ["ever", "right optional"]],
    rows.map(([name, each]) => {
      const recent = each.recent.reduce((x, y) => x + y, 0);
      const shown = before && recent > 0 ? each.recent : each.all;
      return [name, before && seconds > 0 ? rate(recent / seconds) : "–", below(shown, 0.5), below(shown, 0.99), below(each.all, 0.99), number(each.all.reduce((x, y) => x + y, 0))];
    }), "Requests and stages");
}

function below(counts, share) {
  const found = quantile(counts, share);
  return found === null ? "–" : "< " + duration(found);
}
