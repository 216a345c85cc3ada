// The frame: which page is shown, keys, light and dark, whether the family is ready.

import { h, toast } from "./dom.js";
import { every, get, session } from "./live.js";
import * as faults from "./faults.js";
import * as groups from "./groups.js";
import * as messages from "./messages.js";
import * as overview from "./overview.js";
import * as settings from "./settings.js";
import * as topics from "./topics.js";

const PAGES = [
  [/^\/?$/, "overview", overview.show],
  [/^\/topics$/, "topics", topics.showAll],
  [/^\/topics\/([^/]+)$/, "topics", topics.showOne],
  [/^\/topics\/([^/]+)\/messages$/, "topics", messages.show],
  [/^\/groups$/, "groups", groups.showAll],
  [/^\/groups\/(.+)$/, "groups", groups.showOne],
  [/^\/settings$/, "settings", settings.show],
  [/^\/faults$/, "faults", faults.show],
];
const GO = { o: "#/", t: "#/topics", g: "#/groups", s: "#/settings", f: "#/faults" };
const THEMES = ["system", "light", "dark"];

const main = document.getElementById("main");
let leaving = new AbortController();

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const signal = leaving.signal;
  const [path, params] = location.hash.slice(1).split("?");
  const found = PAGES.find(([pattern]) => pattern.test(path));
  for (const link of document.querySelectorAll("nav a")) {
    if (found && link.dataset.page === found[1]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  main.replaceChildren();
  if (!found) {
    main.append(h("h1", null, "There is no such page"), h("a", { href: "#/" }, "Overview"));
    return;
  }
  const names = found[0].exec(path).slice(1).map(decoded);
  document.title = (names[0] ? names[0] + " · " : "") + found[1] + " · shmbroker";
  try {
    await found[2](main, { name: names[0], params: new URLSearchParams(params || ""), signal, may: await about });
  } catch (error) {
    if (error.name !== "AbortError" && !signal.aborted) {
      main.append(h("div", { class: "note bad", role: "alert" }, error.message));
    }
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch { return text; }
}

// ── ready or not ──────────────────────────────────────────────────────────────────────────────

const state = document.getElementById("state");

function say(text, kind, title) {
  state.textContent = text;
  state.className = "badge " + kind;
  state.title = title;
}

document.addEventListener("refused", (event) => say("no answer", "bad", event.detail));
every(5000, async () => {
  const found = await get("faults");
  const reasons = found.reasons_not_ready;
  if (reasons.length) say("not ready", "bad", reasons.join("\n"));
  else if (found.partitions_count) say(found.partitions_count + " partitions lack something", "warn", "see Faults");
  else say("ready", "", "all serve");
}, new AbortController().signal).catch(() => {});

// ── light and dark ────────────────────────────────────────────────────────────────────────────

const themeButton = document.getElementById("theme");

function stored(name, fallback) {
  try {
    return localStorage.getItem(name) || fallback;
  } catch { return fallback; }
}

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = { system: "◐", light: "☀", dark: "☾" }[theme];
  themeButton.setAttribute("aria-label", "Colours: " + theme);
  try {
    localStorage.setItem("theme", theme);
  } catch { /* a browser that keeps nothing */ }
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(stored("theme", "system")) + 1) % THEMES.length]);
}

themeButton.addEventListener("click", nextTheme);
setTheme(THEMES.includes(stored("theme", "")) ? stored("theme", "") : "system");

// ── keys ──────────────────────────────────────────────────────────────────────────────────────

const help = document.getElementById("help");
document.getElementById("keys").addEventListener("click", () => help.showModal());
let isGoing = false;

function move(step) {
  const rows = [...main.querySelectorAll("tbody a[data-row], details > summary")].filter((row) => row.offsetParent);
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") {
    if (isTyping) event.target.blur();
    document.dispatchEvent(new CustomEvent("escape"));
    return;
  }
  if (isTyping) return;
  const key = event.key;
  if (isGoing) {
    isGoing = false;
    if (GO[key]) location.hash = GO[key];
    return;
  }
  if (key === "g") {
    isGoing = true;
    setTimeout(() => { isGoing = false; }, 1500);
  } else if (key === "j" || key === "k") move(key === "j" ? 1 : -1);
  else if (key === "t") nextTheme();
  else if (key === "?") help.showModal();
  else if (key === "l") main.querySelector("[data-key=l]")?.click();
  else if (key === "/") {
    main.querySelector("[data-key='/']")?.focus();
    event.preventDefault();
  }
});

// ── begin ─────────────────────────────────────────────────────────────────────────────────────

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

const about = session().then((found) => {
  document.getElementById("mode").textContent = found.may_write ? "writes on" : "read-only";
  document.querySelector(".brand").title = `shmbroker ${found.version}, cluster ${found.cluster_id}, data in ${found.data_directory}`;
  return found;
}).catch((error) => {
  toast(error.message);
  return { may_write: false };
});
window.addEventListener("hashchange", show);
show();
