// Topics, and one topic with its partitions.

import { ask, bytes, field, h, number, put, rate, table, toast } from "./dom.js";
import { change, every, get } from "./live.js";

const COLUMNS = [
  ["name", "Topic", ""], ["partitions", "Partitions", "right"], ["records", "Records", "right"],
  ["rate", "in/s", "right"], ["size_bytes", "Size", "right"], ["replicas", "Replicas", "right optional"], ["lacks", "Lacks", ""],
];

export async function showAll(main, { signal }) {
  const filter = h("input", { type: "search", "data-key": "/", placeholder: "filter", "aria-label": "Filter by name", oninput: () => draw() });
  const internal = h("input", { type: "checkbox", onchange: () => draw() });
  const body = h("tbody", null), count = h("span", { class: "quiet", role: "status" });
  let sorted = "name", isDown = false, rows = [], before = null;
  const heads = COLUMNS.map(([key, title, kind]) => h("th", { scope: "col", class: kind },
    h("button", { type: "button", onclick: () => { isDown = sorted === key ? !isDown : key !== "name"; sorted = key; draw(); } }, title)));
  main.append(h("h1", null, "Topics"),
    h("div", { class: "bar" }, filter, h("label", { class: "check" }, internal, "internal ones too"), count),
    h("div", { class: "scroll" }, h("table", null, h("thead", null, h("tr", null, heads)), body)));

  function draw() {
    heads.forEach((head, at) => {
      if (COLUMNS[at][0] === sorted) head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const wanted = filter.value.toLowerCase();
    const shown = rows.filter((row) => (internal.checked || !row.is_internal) && row.name.toLowerCase().includes(wanted));
    shown.sort((a, b) => (a[sorted] < b[sorted] ? -1 : a[sorted] > b[sorted] ? 1 : 0) * (isDown ? -1 : 1));
    put(body, ...shown.map((row) => h("tr", null,
      h("td", { class: "break" }, h("a", { href: "#/topics/" + encodeURIComponent(row.name), "data-row": row.name }, row.name)),
      h("td", { class: "right" }, number(row.partitions)), h("td", { class: "right" }, number(row.records)),
      h("td", { class: "right" }, rate(row.rate)), h("td", { class: "right" }, bytes(row.size_bytes)),
      h("td", { class: "right optional" }, number(row.replicas)), h("td", null, row.lacks ? h("span", { class: "badge bad" }, row.lacks) : ""))));
    count.textContent = `${shown.length} of ${rows.length}`;
  }

  await every(2000, async () => {
    const now = await get("snapshot", null, signal);
    const seconds = before ? now.monotonic_s - before.monotonic_s : 0;
    const was = new Map((before?.topics || []).map((each) => [each.name, each.records]));
    rows = now.topics.map((each) => ({
      ...each,
      rate: seconds > 0 && was.has(each.name) ? Math.max(0, each.records - was.get(each.name)) / seconds : null,
      lacks: each.without_leader ? `${each.without_leader} without a leader` : each.under_replicated ? `${each.under_replicated} under-replicated` : "",
    }));
    before = now;
    draw();
    if (now.topics_left_out) count.textContent += `, ${now.topics_left_out} more are not shown`;
  }, signal);
}

export function tabs(name, current) {
  const link = (path, text) => h("a", { href: "#/topics/" + encodeURIComponent(name) + path, "aria-current": current === path ? "page" : null }, text);
  return h("nav", { "aria-label": "Topic" }, link("", "Partitions"), link("/messages", "Messages"),
    h("a", { href: "#/settings?topic=" + encodeURIComponent(name) }, "Settings"));
}

export async function showOne(main, { name, signal, may }) {
  const facts = h("dl", null), partitions = h("div", null), groups = h("div", null);
  main.append(h("h1", null, name), tabs(name, ""), facts, h("h2", null, "Partitions"), partitions, groups);
  if (may.may_write) main.append(h("div", { class: "bar" }, h("button", { class: "bad", type: "button", onclick: () => remove(name) }, "Delete the topic…")));
  await every(2000, async () => {
    const found = await get("topic", { topic: name }, signal);
    const sum = (pick) => found.partitions.reduce((total, each) => total + (pick(each) || 0), 0);
    put(facts,
      h("dt", null, "Records ever"), h("dd", null, number(sum((each) => each.end_offset))),
      h("dt", null, "Records kept, at most"), h("dd", null, number(sum((each) => each.end_offset - each.start_offset))),
      h("dt", null, "Size of the leaders"), h("dd", null, bytes(sum((each) => each.size_bytes))),
      h("dt", null, "Topic id"), h("dd", { class: "mono" }, found.topic_id),
      h("dt", null, "min.insync.replicas"), h("dd", null, found.min_in_sync));
    put(partitions, table(
      [["Partition", "right"], ["Leader", "right"], ["Replicas", ""], ["In sync", ""], ["First", "right"], ["End", "right"], ["Size", "right"], ["Segments", "right optional"], ["Behind", "right optional"]],
      found.partitions.map((each) => [
        h("a", { "data-row": each.number, href: `#/topics/${encodeURIComponent(name)}/messages?partition=${each.number}` }, each.number),
        each.leader < 0 ? h("span", { class: "badge bad" }, "none") : each.leader,
        each.replicas.map((replica) => replica.broker).join(", "),
        each.in_sync.length < each.replicas.length ? h("span", { class: "badge warn" }, each.in_sync.join(", ") || "none") : each.in_sync.join(", "),
        number(each.start_offset), number(each.end_offset), bytes(each.size_bytes), number(each.segments),
        number(Math.max(0, ...each.replicas.map((replica) => replica.lag || 0)))]),
      "Partitions"));
    put(groups, found.groups.length
      ? h("p", null, "Read by ", found.groups.map((group, at) => [at ? ", " : "", h("a", { href: "#/groups/" + encodeURIComponent(group) }, group)]))
      : h("p", { class: "quiet" }, "No group has committed offsets of it."));
  }, signal);
}

async function remove(name) {
  const typed = h("input", { required: true, autocomplete: "off" });
  const body = [h("p", null, "All its records are gone then, for good. Type its name to confirm."), field("Name", typed)];
  if (!(await ask(`Delete ${name}`, body, "Delete", true))) return;
  try {
    await change("delete-topic", { topic: name, confirm: typed.value });
    toast(`${name} is deleted.`);
    location.hash = "#/topics";
  } catch (error) { toast(error.message); }
}
