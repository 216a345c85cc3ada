// Records of a topic: pages of them, searches, a live tail; and producing one, where that is allowed.

import { ask, bytes, field, h, number, select, time, toast } from "./dom.js";
import { change, get, stream } from "./live.js";
import { tabs } from "./topics.js";
import { VIEWS, preview, whole } from "./values.js";

const COUNT = 50;
const SHOWN_MAX = 500;

export async function show(main, { name, params, signal, may }) {
  const topic = await get("topic", { topic: name }, signal);
  const partitions = topic.partitions.map((each) => [each.number, String(each.number)]);
  const partition = select({}, [["", "all"], ...partitions], params.get("partition") ?? "");
  const from = select({ onchange: () => hint() }, [["newest", "newest first"], ["oldest", "oldest first"], ["time", "from a time"], ["offset", "from an offset"]], params.get("offset") ? "offset" : "newest");
  const place = h("input", { size: 18, value: params.get("offset") ?? "", "aria-label": "Time or offset" });
  const committed = h("input", { type: "checkbox" });
  const text = h("input", { type: "search", "data-key": "/", size: 24, value: params.get("text") ?? "" });
  const where = select({}, [["any", "anywhere"], ["key", "key"], ["value", "value"], ["header", "headers"]], "any");
  const exact = h("input", { type: "checkbox" });
  const view = select({ onchange: () => redraw() }, VIEWS, stored("view:" + name) || "auto");
  const schema = h("textarea", { rows: 4, spellcheck: "false", placeholder: '{"type": "record", "name": …}', value: stored("schema:" + name), oninput: () => redraw() });
  const schemaField = field("Avro schema, JSON (kept in this browser)", schema);
  const list = h("div", { class: "records", "aria-label": "Records" });
  const status = h("div", { class: "quiet", role: "status" });
  const bar = h("progress", { class: "hidden", max: 1, value: 0, "aria-label": "How far the search is" });
  const older = h("button", { type: "button", disabled: true, onclick: () => more() }, "More");
  const live = h("button", { type: "button", "data-key": "l", "aria-pressed": "false", "aria-keyshortcuts": "l", onclick: () => (running === "tail" ? stop() : tail()) }, "Live tail");
  const stopButton = h("button", { type: "button", class: "hidden", onclick: () => stop() }, "Stop");
  const buttons = [h("button", { type: "button", class: "main", onclick: () => browse() }, "Show"), live, older, stopButton];
  if (may.may_write) buttons.push(h("button", { type: "button", onclick: () => produce(name, partitions) }, "Produce a record…"));

  main.append(h("h1", null, name), tabs(name, "/messages"),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); browse(); } },
      field("Partition", partition), field("Order", from), field("Time or offset", place),
      field("Shown as", view), h("label", { class: "check" }, committed, "committed only")),
    h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); search(null); } },
      field("Search for", text), field("in", where), h("label", { class: "check" }, exact, "case counts"),
      h("button", null, "Search")),
    schemaField, h("div", { class: "bar" }, buttons), bar, status, list);

  let records = [], following = "", running = "", end = () => {}, searched = null;
  document.addEventListener("escape", () => stop(), { signal });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && running === "tail") {
      stop();
      status.textContent = "The live tail rests while nobody sees it.";
    }
  }, { signal });

  function hint() {
    place.disabled = !["time", "offset"].includes(from.value);
    place.placeholder = from.value === "time" ? "2026-11-24 10:00" : from.value === "offset" ? "1000" : "";
  }

  function common() {
    return { topic: name, partition: partition.value, isolation: committed.checked ? "read_committed" : "" };
  }

  /** Where to begin, as parameters; throws with a sentence. */
  function start() {
    const given = place.value.trim();
    if (from.value === "newest") return { from: "latest", direction: "back" };
    if (from.value === "oldest") return { from: "earliest" };
    if (from.value === "time") {
      const ms = /^\d{11,}$/.test(given) ? Number(given) : Date.parse(given.replace(" ", "T"));
      if (!isFinite(ms)) throw new Error("Give a time such as 2026-11-24 10:00, or milliseconds since 1970.");
      return { time: Math.max(0, ms) };
    }
    if (!/^\d+$/.test(given)) throw new Error("Give an offset, a number.");
    const chosen = partition.value === "" ? partitions.slice(0, 64).map(([each]) => each) : [partition.value];
    return { at: chosen.map((each) => `${each}:${given}`).join(",") };
  }

  function stop() {
    end();
    end = () => {};
    if (running) status.textContent = status.textContent.replace("…", "") + " Stopped.";
    running = "";
    live.setAttribute("aria-pressed", "false");
    live.textContent = "Live tail";
    stopButton.classList.add("hidden");
    bar.classList.add("hidden");
  }

  function clear() {
    stop();
    records = [];
    following = "";
    older.disabled = true;
    list.replaceChildren();
    status.textContent = "";
  }

  function redraw() {
    keep("view:" + name, view.value);
    keep("schema:" + name, schema.value);
    schemaField.classList.toggle("hidden", view.value !== "avro");
    list.replaceChildren(...records.map((record) => row(record)));
  }

  function row(record) {
    const mark = searched ? text.value : "";
    const inside = h("div", { class: "inside" });
    const details = h("details", { class: "record" },
      h("summary", null,
        h("span", { class: "place" }, `${record.partition} : ${record.offset}`),
        h("span", { class: "when" }, time(record.timestamp)),
        h("span", { class: "key" }, preview(record.key, view.value === "hex" ? "hex" : "text")),
        h("span", { class: "value mono" }, preview(record.value, view.value, schema.value))),
      inside);
    details.addEventListener("toggle", () => {
      if (details.open) inside.replaceChildren(...open(record, mark));
      else inside.replaceChildren();
    });
    return details;
  }

  function open(record, mark) {
    const parts = [];
    const isCut = record.value.is_cut || record.key.is_cut;
    if (isCut) {
      parts.push(h("button", { type: "button", onclick: async (event) => {
        try {
          Object.assign(record, await get("message", { ...common(), partition: record.partition, offset: record.offset }, signal));
          event.target.closest(".inside").replaceChildren(...open(record, mark));
        } catch (error) { toast(error.message); }
      } }, "Load it whole"));
    }
    parts.push(h("h3", null, `Value, ${bytes(record.value.bytes ?? 0)}`), whole(record.value, view.value, schema.value, mark));
    parts.push(h("h3", null, `Key, ${bytes(record.key.bytes ?? 0)}`), whole(record.key, view.value === "hex" ? "hex" : "auto", "", mark));
    if (record.headers.length) {
      parts.push(h("h3", null, "Headers"));
      for (const [key, value] of record.headers) {
        parts.push(h("dl", null, h("dt", null, preview(key, "text")), h("dd", null, whole(value, "auto", "", mark))));
      }
      if (record.headers_left_out) parts.push(h("p", { class: "quiet" }, `${record.headers_left_out} more headers`));
    }
    parts.push(h("p", { class: "quiet" }, `Partition ${record.partition}, offset ${record.offset}, ${time(record.timestamp)} (${record.timestamp})`));
    return parts.flat(Infinity).filter(Boolean);
  }

  function add(found, isFirst) {
    if (isFirst) {
      records.unshift(found);
      list.prepend(row(found));
      if (records.length > SHOWN_MAX) {
        records.pop();
        list.lastElementChild.remove();
      }
    } else {
      records.push(found);
      list.append(row(found));
    }
  }

  // ── a page ──────────────────────────────────────────────────────────────────────────────────

  let asked = null;

  async function browse() {
    clear();
    searched = null;
    try {
      asked = start();
      await page(asked);
    } catch (error) { told(error); }
  }

  async function page(parameters) {
    status.textContent = "Reading…";
    const found = await get("messages", { ...common(), ...parameters, count: COUNT }, signal);
    found.records.forEach((record) => add(record, false));
    following = found.following;
    const held = Object.keys(found.ends).reduce((sum, each) => sum + found.ends[each] - found.starts[each], 0);
    status.textContent = records.length
      ? `${number(records.length)} records shown, of ${number(held)} offsets.` + (found.is_bounded ? " Reading was ended at its bound of bytes and seconds: More goes on." : "")
      : found.is_bounded ? "Nothing within the bound of bytes and seconds; More goes on." : "No records.";
    if (found.left_out) status.textContent += ` ${number(found.left_out)} batches are too large to be shown, or malformed.`;
    older.disabled = !found.records.length && !found.is_bounded;
    older.textContent = asked.direction === "back" ? "Older" : "More";
  }

  async function more() {
    try {
      if (searched) return search(following);
      await page({ at: following, direction: asked.direction });
    } catch (error) { told(error); }
  }

  function told(error) {
    if (error.name !== "AbortError") status.textContent = error.message;
  }

  // ── search and tail ─────────────────────────────────────────────────────────────────────────

  function run(kind, path, parameters, on) {
    running = kind;
    stopButton.classList.toggle("hidden", kind === "tail");
    end = stream(path, parameters, {
      ...on,
      failed: ({ error }) => { stop(); status.textContent = error; },
    }, signal);
  }

  function search(goesOn) {
    if (!text.value) return status.textContent = "Say what to search for.";
    let at;
    try {
      at = goesOn ? { at: goesOn } : from.value === "newest" ? { from: "earliest" } : start();
    } catch (error) { return told(error); }
    if (goesOn) stop();
    else clear();
    searched = true;
    bar.classList.remove("hidden");
    bar.value = 0;
    run("search", "search", { ...common(), ...at, text: text.value, in: where.value, case: exact.checked ? "1" : "", count: COUNT }, {
      record: (found) => add(found, false),
      progress: (found) => {
        bar.value = found.share;
        following = found.following;
        const so = `${number(records.length)} found in ${number(found.records)} records, ${bytes(found.bytes)}`;
        if (!found.ended) return status.textContent = so + "…";
        running = "";
        stop();
        status.textContent = so + { done: "; that is all.", found: "; More goes on.", bounds: ", the bound of one search; More goes on." }[found.ended];
        older.disabled = found.ended === "done";
        older.textContent = "More";
      },
    });
  }

  function tail() {
    clear();
    searched = text.value ? true : null;
    live.setAttribute("aria-pressed", "true");
    live.textContent = "Stop the tail";
    status.textContent = "Waiting for records…";
    run("tail", "tail", { ...common(), text: text.value }, {
      record: (found) => add(found, true),
      progress: (found) => {
        status.textContent = `Live: ${number(found.records)} records seen, ${number(records.length)} shown`
          + (found.left_out ? `, ${number(found.left_out)} left out as they came too fast` : "") + "…";
      },
    });
  }

  hint();
  redraw();
  if (params.get("text")) search(null);
  else await browse();
}

async function produce(name, partitions) {
  const partition = select({}, [["", "as the key says"], ...partitions], "");
  const key = h("textarea", { rows: 1 }), value = h("textarea", { rows: 6 }), headers = h("textarea", { rows: 2, placeholder: "name: value" });
  const noKey = h("input", { type: "checkbox", checked: true }), isNull = h("input", { type: "checkbox" });
  key.addEventListener("input", () => { noKey.checked = false; });
  const body = [field("Partition", partition), field("Key", key), h("label", { class: "check" }, noKey, "no key"),
    field("Value", value), h("label", { class: "check" }, isNull, "null: deletes the key of a compacted topic"), field("Headers, one a line", headers),
    h("p", null, `It is appended to ${name} and can't be taken back.`)];
  if (!(await ask(`Produce a record to ${name}`, body, "Produce", false))) return;
  const rows = headers.value.split("\n").filter(Boolean).map((line) => {
    const [head, ...rest] = line.split(":");
    return [head.trim(), rest.join(":").trim()];
  });
  try {
    const found = await change("produce", {
      topic: name, confirm: name, partition: partition.value === "" ? null : Number(partition.value),
      key: noKey.checked ? null : key.value, value: isNull.checked ? null : value.value, headers: rows,
    });
    toast(`It is at offset ${found.offset} of partition ${found.partition}.`);
  } catch (error) { toast(error.message); }
}

function stored(name) {
  try {
    return localStorage.getItem(name) || "";
  } catch { return ""; }
}

function keep(name, value) {
  try {
    if (value && value !== "auto") localStorage.setItem(name, value);
    else localStorage.removeItem(name);
  } catch { /* a browser that keeps nothing */ }
}
