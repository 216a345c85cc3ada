// Groups and their lag over time; one group with its partitions and members.

import { ask, duration, field, h, line, number, put, s, select, table, time, toast } from "./dom.js";
import { change, every, get } from "./live.js";

export async function showAll(main, { signal }) {
  const filter = h("input", { type: "search", "data-key": "/", placeholder: "filter", "aria-label": "Filter by name", oninput: () => draw() });
  const age = h("span", { class: "quiet", role: "status" }), place = h("div", null);
  let found = null;
  main.append(h("h1", null, "Groups"), h("div", { class: "bar" }, filter, age), place);

  function draw() {
    if (!found) return;
    const wanted = filter.value.toLowerCase();
    const rows = found.groups.filter((each) => each.name.toLowerCase().includes(wanted)).sort((a, b) => b.lag - a.lag);
    put(place, table(
      [["Group", "break"], ["State", ""], ["Members", "right"], ["Lag", "right"], ["over time", ""], ["Partitions", "right optional"], ["Kind", "optional"], ["Coordinator", "right optional"]],
      rows.map((each) => [h("a", { href: "#/groups/" + encodeURIComponent(each.name), "data-row": each.name }, each.name),
        each.state, number(each.members), number(each.lag), spark(each.history), number(each.partitions), each.kind, each.coordinator]),
      "Groups"));
    age.textContent = `${rows.length} of ${found.groups.length + found.left_out}` + (found.age_s === null ? "" : `, asked ${duration(found.age_s)} ago`);
  }

  await every(5000, async () => {
    found = await get("groups", null, signal);
    draw();
  }, signal);
}

function spark(points) {
  return s("svg", { class: "spark", viewBox: "0 0 110 24", preserveAspectRatio: "none", "aria-hidden": "true" }, line(points, 110, 24));
}

function chart(points) {
  if (points.length < 2) return h("p", { class: "quiet" }, "Lag is noted every 10 seconds while a page is open; the line begins with the second.");
  const top = Math.max(...points.map((point) => point[1]));
  return s("svg", { class: "chart", viewBox: "0 0 800 180", preserveAspectRatio: "none", role: "img", "aria-label": `Lag from ${time(points[0][0])} on, at most ${top}` },
    s("path", { class: "axis", d: "M1 178H799" }), line(points, 800, 180));
}

export async function showOne(main, { name, signal, may }) {
  const facts = h("dl", null), graph = h("div", { class: "card" }), lags = h("div", null), members = h("div", null);
  let topics = [];
  main.append(h("h1", null, name), facts, h("h2", null, "Lag over time"), graph, h("h2", null, "Partitions"), lags, h("h2", null, "Members"), members);
  if (may.may_write) main.append(h("div", { class: "bar" }, h("button", { type: "button", class: "bad", onclick: () => reset(name, topics) }, "Move its offsets…")));
  await every(5000, async () => {
    const found = await get("group", { name }, signal);
    topics = [...new Set(found.lags.map((each) => each.topic))].sort();
    put(facts,
      h("dt", null, "State"), h("dd", null, `${found.state}, ${found.kind}, coordinator ${found.coordinator}`),
      h("dt", null, "Lag"), h("dd", null, number(found.lag) + " records"));
    const points = found.history;
    put(graph, chart(points), points.length > 1 ? h("div", { class: "quiet" }, `${time(points[0][0])} to ${time(points[points.length - 1][0])}, at most ${number(Math.max(...points.map((point) => point[1])))}`) : "");
    put(lags, table([["Topic", "break"], ["Partition", "right"], ["Committed", "right"], ["End", "right"], ["Lag", "right"]],
      found.lags.map((each) => [h("a", { href: `#/topics/${encodeURIComponent(each.topic)}/messages?partition=${each.partition}&offset=${each.committed}`, "data-row": each.topic + each.partition }, each.topic),
        each.partition, number(each.committed), number(each.end_offset), number(each.lag)]), "Lag by partition"));
    if (found.lags_left_out) lags.append(h("p", { class: "quiet" }, `${found.lags_left_out} more partitions`));
    put(members, found.members.length
      ? table([["Client", "break"], ["Host", ""], ["Has", "break"], ["Member", "break optional"]],
        found.members.map((each) => [each.client, each.host, each.assigned.join(", ") + (each.assigned_count > each.assigned.length ? ` and ${each.assigned_count - each.assigned.length} more` : ""), each.member]), "Members")
      : h("p", { class: "quiet" }, "Nobody is in it now."));
  }, signal);
}

async function reset(name, topics) {
  const topic = topics.length ? select({}, topics.map((each) => [each, each]), topics[0]) : h("input", { required: true });
  const to = select({}, [["earliest", "the first record"], ["latest", "the end"], ["time", "a time"], ["offset", "an offset"]], "earliest");
  const value = h("input", { placeholder: "time or offset" });
  const body = [h("p", null, "Only a group without members can be moved."), field("Topic", topic), field("To", to), field("Time or offset", value)];
  if (!(await ask(`Move the offsets of ${name}`, body, "Show what would happen", false))) return;
  const given = value.value.trim();
  const wanted = { group: name, confirm: name, topic: topic.value, to: to.value };
  if (to.value === "offset") wanted.value = Number(given);
  if (to.value === "time") wanted.value = /^\d{11,}$/.test(given) ? Number(given) : Date.parse(given.replace(" ", "T"));
  try {
    const { plan } = await change("reset-offsets", wanted);
    const shown = table([["Partition", "right"], ["New offset", "right"]], plan.map((each) => [each.partition, number(each.offset)]), "New offsets");
    if (!(await ask(`Move ${name} in ${topic.value}`, shown, "Move", true))) return;
    await change("reset-offsets", { ...wanted, execute: true });
    toast("The offsets are moved.");
  } catch (error) { toast(error.message); }
}
