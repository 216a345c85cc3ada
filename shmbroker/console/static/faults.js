// What is wrong now, and what has happened since the console began.

import { bytes, h, number, put, table, time } from "./dom.js";
import { every, get } from "./live.js";

const WORDS = {
  log_damage: "places of logs found damaged, missing or impossible (what was taken out is in quarantine/)",
  partitions_lost: "partitions gone or set aside at a start",
  storage_faults: "refusals by the disk",
  logs_not_compacted: "logs that compaction has given up",
  tier_faults: "requests that the remote store has failed",
  tier_damaged: "segments or manifests found damaged, here or in the remote store",
  protocol_faults: "connections closed for bytes that do not parse",
  appends_refused_storage: "appends refused as the disk is full or has failed",
  appends_refused_not_in_sync: "appends refused for too few in-sync replicas",
};

export async function show(main, { signal }) {
  const now = h("div", null), events = h("div", null);
  main.append(h("h1", null, "Faults"), now, h("h2", null, "What has happened"), events);
  await every(2000, async () => {
    const found = await get("faults", null, signal);
    const parts = found.reasons_not_ready.map((reason) => h("div", { class: "note bad" }, reason));
    if (found.partitions.length) {
      parts.push(h("h2", null, `Partitions that lack something: ${number(found.partitions_count)}`), table([["Topic", "break"], ["Partition", "right"], ["What", ""]],
        found.partitions.map((each) => [h("a", { href: "#/topics/" + encodeURIComponent(each.topic), "data-row": "" }, each.topic), each.partition, each.wrong]), "Partitions"));
    }
    if (found.restarts.length) {
      parts.push(h("h2", null, "Restarts"), table([["Process", ""], ["Times", "right"], ["Last start", ""]],
        found.restarts.map((each) => [each.process, each.restarts, time(each.started_ms)]), "Restarts"));
    }
    if (found.counted.length) {
      parts.push(h("h2", null, "Counted since the family began"), table([["Process", ""], ["Count", "right"], ["Of", ""]],
        found.counted.map((each) => [each.process, number(each.count), WORDS[each.name] || each.name]), "Counted faults"));
    }
    if (found.put_aside.length) {
      parts.push(h("h2", null, "Taken out of logs"), table([["File", "break"], ["Size", "right"], ["Written", ""]],
        found.put_aside.map((each) => [each.path, bytes(each.bytes), time(each.at_ms)]), "Files in quarantine"));
    }
    if (!parts.length) parts.push(h("div", { class: "card" }, "Nothing is wrong: all serve, no partition lacks anything, nothing was restarted."));
    put(now, ...parts);
    put(events, found.events.length
      ? table([["When", ""], ["How bad", ""], ["What", "break"]],
        found.events.map((each) => [time(each.at_ms), h("span", { class: "badge " + ({ error: "bad", warning: "warn" }[each.level] || "quiet") }, each.level), each.what]), "Events")
      : h("p", { class: "quiet" }, "Nothing yet. Events are kept while the console's process lives, the last 500."));
  }, signal);
}
