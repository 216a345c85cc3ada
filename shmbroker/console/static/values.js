// Keys and values, which are any bytes, as something to read: JSON, text, hex, Avro.

import { h } from "./dom.js";
import { decodeAvro } from "./avro.js";

export const VIEWS = [["auto", "as it looks"], ["json", "JSON"], ["text", "text"], ["hex", "hex"], ["avro", "Avro"]];

/** The bytes of a field as the console sends it. */
export function bytesOf(field) {
  if (field.kind === "text") return new TextEncoder().encode(field.text);
  const data = new Uint8Array((field.hex || "").length / 2);
  for (let at = 0; at < data.length; at += 1) data[at] = parseInt(field.hex.slice(2 * at, 2 * at + 2), 16);
  return data;
}

/** One line of it. */
export function preview(field, view, schema) {
  if (field.kind === "null") return h("span", { class: "quiet" }, "null");
  if (view === "avro" && schema) {
    const decoded = tryAvro(field, schema);
    if (decoded.text !== undefined) return decoded.text.replace(/\s+/g, " ").slice(0, 300);
  }
  if (field.kind === "text" && view !== "hex") return field.text.slice(0, 300).replace(/\s+/g, " ") || h("span", { class: "quiet" }, "empty");
  return h("span", { class: "mono quiet" }, hexOf(bytesOf(field).slice(0, 32)));
}

/** All of it, with what it was taken for. */
export function whole(field, view, schema, mark) {
  if (field.kind === "null") return [h("pre", { class: "quiet" }, "null")];
  const notes = [];
  if (field.is_cut) notes.push(`cut: it has ${field.bytes} bytes`);
  if (view === "avro") {
    const decoded = tryAvro(field, schema);
    if (decoded.text !== undefined) return [note(notes), h("pre", null, pretty(decoded.text))];
    notes.push(decoded.reason);
  }
  if (field.kind === "text" && view !== "hex" && view !== "avro") {
    if (view !== "text") {
      const json = isJson(field.text);
      if (json) return [note(notes), h("pre", null, pretty(field.text))];
      if (view === "json") notes.push("it is not JSON");
    }
    return [note(notes), h("pre", null, marked(field.text, mark))];
  }
  return [note(notes), h("pre", { class: "hex" }, dump(bytesOf(field)))];
}

function note(notes) {
  return notes.length ? h("div", { class: "quiet" }, notes.join("; ")) : null;
}

function tryAvro(field, schema) {
  if (field.is_cut) return { reason: "it is cut, so it can't be decoded as Avro: open it whole" };
  try {
    return { text: decodeAvro(bytesOf(field), schema) };
  } catch (error) {
    return { reason: "not this Avro: " + error.message };
  }
}

function isJson(text) {
  const first = text.trimStart()[0];
  if (first !== "{" && first !== "[") return false;
  try {
    JSON.parse(text);
    return true;
  } catch { return false; }
}

/** The text with what was searched for marked. */
function marked(text, mark) {
  if (!mark) return [text];
  const parts = [], low = text.toLowerCase(), wanted = mark.toLowerCase();
  let at = 0;
  for (let count = 0; count < 1000; count += 1) {
    const found = low.indexOf(wanted, at);
    if (found < 0 || low.length !== text.length) break;
    parts.push(text.slice(at, found), h("mark", null, text.slice(found, found + wanted.length)));
    at = found + wanted.length;
  }
  return [...parts, text.slice(at)];
}

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[{}[\],:]/g;

/** JSON that was parsed once, laid out anew from its own text: no number loses a digit. */
export function pretty(text) {
  const parts = [];
  let depth = 0, before = "";
  const newLine = () => parts.push("\n" + "  ".repeat(depth));
  const tokens = text.match(TOKEN) || [];
  tokens.forEach((token, at) => {
    if (token === "}" || token === "]") {
      depth -= 1;
      if (before !== "{" && before !== "[") newLine();
      parts.push(token);
    } else {
      if (before === "{" || before === "[" || before === ",") newLine();
      if (token === "{" || token === "[") {
        parts.push(token);
        depth += 1;
      } else if (token === ",") parts.push(",");
      else if (token === ":") parts.push(": ");
      else {
        let kind = "json-number";
        if (token[0] === '"') kind = tokens[at + 1] === ":" ? "json-name" : "json-text";
        else if (token[0] === "t" || token[0] === "f" || token[0] === "n") kind = "json-word";
        parts.push(h("span", { class: kind }, token));
      }
    }
    before = token;
  });
  return parts;
}

function hexOf(data) {
  return Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** Offset, bytes and what of them is text: 16 to a line. */
export function dump(data) {
  const lines = [];
  for (let at = 0; at < data.length && at < 65536; at += 16) {
    const some = data.slice(at, at + 16);
    const text = Array.from(some, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(at.toString(16).padStart(6, "0") + "  " + hexOf(some).padEnd(48) + " " + text);
  }
  return lines.join("\n");
}
