// Settings of a broker or topic: the value, where it is from, what it is for.

import { field, h, select } from "./dom.js";
import { get } from "./live.js";

export async function show(main, { params, signal }) {
  const topic = params.get("topic");
  const filter = h("input", { type: "search", "data-key": "/", placeholder: "name, value, words", "aria-label": "Filter", oninput: () => draw() });
  const changed = h("input", { type: "checkbox", onchange: () => draw() });
  const broker = h("select", { onchange: () => load() }), list = h("div", { class: "records" }), count = h("span", { class: "quiet", role: "status" });
  let rows = [];
  main.append(h("h1", null, topic ? `Settings of ${topic}` : "Settings"),
    topic ? h("p", null, h("a", { href: "#/topics/" + encodeURIComponent(topic) }, "Back to the topic")) : "",
    h("div", { class: "bar" }, field("Broker", broker), filter, h("label", { class: "check" }, changed, "only what is set"), count), list);

  async function load() {
    const found = await get("settings", { topic, broker: broker.value }, signal);
    broker.replaceChildren(...select(null, found.brokers.map((each) => [each, each]), found.broker).children);
    rows = found.settings;
    draw();
  }

  function draw() {
    const words = filter.value.toLowerCase();
    const shown = rows.filter((each) => (!changed.checked || each.from !== "default")
      && `${each.name} ${each.value} ${each.documentation}`.toLowerCase().includes(words));
    list.replaceChildren(...shown.map(row));
    count.textContent = `${shown.length} of ${rows.length}`;
  }

  await load();
}

function value(text, isSecret) {
  if (isSecret) return h("span", { class: "quiet" }, "hidden");
  return text === null ? h("span", { class: "quiet" }, "none") : text === "" ? h("span", { class: "quiet" }, '""') : text;
}

function row(each) {
  return h("details", { class: "setting" },
    h("summary", null, h("span", { class: "mono break" }, each.name), h("span", { class: "value mono" }, value(each.value, each.is_secret)),
      h("span", { class: "badge " + (each.from === "default" ? "quiet" : "") }, each.from)),
    h("div", { class: "inside" }, h("p", null, each.documentation || "No documentation."),
      each.has_effect ? null : h("p", { class: "note" }, "Kept and shown for Kafka's sake: it changes nothing here."),
      h("dl", null,
        h("dt", null, "Value"), h("dd", null, value(each.value, each.is_secret), each.unit ? " " + each.unit : ""),
        h("dt", null, "Default"), h("dd", null, value(each.default, false)),
        h("dt", null, "Can be changed"), h("dd", null, each.is_dynamic ? "while it runs (shmbroker config set)" : "at a start"),
        each.behind.length ? [h("dt", null, "Looked for in this order"), h("dd", null, each.behind.map((one) => h("div", { class: "mono" }, `${one.name} = `, value(one.value, each.is_secret), ` (${one.from})`)))] : null)));
}
