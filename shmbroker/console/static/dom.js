// Building the page out of elements and text. Nothing here, or anywhere else, parses markup: what
// comes from topics is only ever a text node or the value of an attribute that runs nothing.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An HTML element: h("td", {class: "right"}, text, element, …). */
export function h(name, props, ...children) {
  return fill(document.createElement(name), props, children);
}

/** An SVG element. */
export function s(name, props, ...children) {
  return fill(document.createElementNS(SVG, name), props, children);
}

/** A table in a box that scrolls by itself: columns are [title, class]. */
export function table(columns, rows, label) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", null,
      h("thead", null, h("tr", null,
        columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", null, rows.map((cells) => h("tr", null,
        cells.map((cell, at) => h("td", { class: columns[at][1] }, cell)))))));
}

/** Show this in a place that is shown anew again and again: what has the focus keeps it, a table its
 * scrolling, and while text in it is selected nothing changes. */
export function put(place, ...nodes) {
  const selection = getSelection();
  if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return;
  const focused = document.activeElement;
  const name = place.contains(focused) && focused !== place ? nameOf(focused) : null;
  const scrolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  place.replaceChildren(...nodes.filter((node) => node !== null && node !== undefined));
  [...place.querySelectorAll(".scroll")].forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
  if (name !== null) {
    [...place.querySelectorAll("a, button, [tabindex]")].find((each) => nameOf(each) === name)?.focus({ preventScroll: true });
  }
}

function nameOf(element) {
  return element.tagName + (element.dataset.row ?? "") + (element.getAttribute("aria-label") ?? "") + (element.getAttribute("href") ?? "");
}

/** A form's field with its label. */
export function field(label, control) {
  return h("label", { class: "field" }, label, control);
}

export function select(props, options, chosen) {
  return h("select", props, options.map(([value, text]) =>
    h("option", { value, selected: String(value) === String(chosen) }, text)));
}

let toastTimer = 0;

/** Say something for some seconds. */
export function toast(text) {
  const place = document.getElementById("toast");
  place.textContent = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { place.textContent = ""; }, 6000);
}

/** A window that asks; resolves to true if it was agreed to. `body` may hold fields. */
export function ask(title, body, agree, isBad) {
  return new Promise((resolve) => {
    const agreed = h("button", { class: isBad ? "bad" : "main", value: "yes" }, agree);
    const dialog = h("dialog", { "aria-label": title },
      h("form", { method: "dialog" }, h("h2", null, title), body,
        h("div", { class: "bar" }, h("button", { value: "no", formnovalidate: true }, "Cancel"), agreed)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// ── numbers and times ─────────────────────────────────────────────────────────────────────────

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 3 });

export function number(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function rate(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  return value < 10 ? short.format(value) : whole.format(value);
}

export function bytes(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  let at = 0;
  while (value >= 1024 && at < 5) { value /= 1024; at += 1; }
  const digits = at && value < 100 ? 1 : 0;
  return value.toFixed(digits) + " " + ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][at];
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return Math.round(seconds * 1e6) + " µs";
  if (seconds < 1) return short.format(seconds * 1e3) + " ms";
  if (seconds < 120) return short.format(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  if (seconds < 172800) return Math.round(seconds / 3600) + " h";
  return Math.round(seconds / 86400) + " days";
}

/** Local time with milliseconds; a timestamp that is none stays a number. */
export function time(ms) {
  const date = new Date(ms);
  if (!isFinite(date) || ms < 0) return String(ms);
  const two = (part) => String(part).padStart(2, "0");
  return date.getFullYear() + "-" + two(date.getMonth() + 1) + "-" + two(date.getDate()) + " "
    + two(date.getHours()) + ":" + two(date.getMinutes()) + ":" + two(date.getSeconds())
    + "." + String(date.getMilliseconds()).padStart(3, "0");
}

/** A line through [x, y] points, from zero, in a box of this size; null where there are too few. */
export function line(points, width, height) {
  if (points.length < 2) return null;
  const first = points[0][0], last = points[points.length - 1][0];
  const top = Math.max(1, ...points.map((point) => point[1]));
  const path = points.map(([x, y], at) => {
    const left = ((x - first) / Math.max(1, last - first)) * (width - 2) + 1;
    const isGap = at > 0 && x - points[at - 1][0] > 60000;
    return (at && !isGap ? "L" : "M") + left.toFixed(1) + " " + (height - 2 - (y / top) * (height - 4)).toFixed(1);
  }).join("");
  return s("path", { class: "line", d: path, "vector-effect": "non-scaling-stroke" });
}
