// Avro to JSON text, for reading: a value with a schema of the reader's, plain, behind Confluent's
// head (0 and four bytes) or behind that of a single object (C3 01 and eight bytes); or a file with
// its own schema (Obj 1), without compression.
//
// Values are hostile: everything is bounded by the bytes at hand and by ITEMS_MAX, also where an
// item has no bytes (arrays of null).
//
// Source: the Apache Avro specification 1.12.

const ITEMS_MAX = 20000;
const DEPTH_MAX = 60;
const FILE = [0x4f, 0x62, 0x6a, 0x01];

/** JSON text of the value; Error with the reason if it is none. `text`: the schema as JSON. */
export function decodeAvro(data, text) {
  if (FILE.every((byte, at) => data[at] === byte)) return decodeFile(data);
  if (!text) throw new Error("there is no schema: give one");
  const schema = parseSchema(text);
  const starts = [];
  if (data[0] === 0xc3 && data[1] === 0x01) starts.push(10);
  if (data[0] === 0) starts.push(5);
  starts.push(0);
  let reason = null;
  for (const start of starts) {
    try {
      const reader = new Reader(data, start, schema.named);
      const found = reader.read(schema.root, 0);
      if (reader.at !== data.length) throw new Error(`${data.length - reader.at} bytes are left over`);
      return found;
    } catch (error) { reason = reason || error; }
  }
  throw reason;
}

function decodeFile(data) {
  const head = new Reader(data, 4, new Map());
  const meta = new Map();
  head.blocks(0, () => {
    const name = head.text();
    meta.set(name, new TextDecoder().decode(head.take(head.size())));
  });
  const codec = meta.get("avro.codec") || "null";
  if (codec !== "null") throw new Error(`a file compressed by ${codec.slice(0, 20)} is not opened here`);
  const schema = parseSchema(meta.get("avro.schema") || "");
  head.take(16);
  const reader = new Reader(data, head.at, schema.named);
  const rows = [];
  while (reader.at < data.length && rows.length < 1000) {
    const count = reader.size();
    reader.size();
    for (let at = 0; at < count && rows.length < 1000; at += 1) {
      reader.item();
      rows.push(reader.read(schema.root, 0));
    }
    reader.take(16);
  }
  return "[" + rows.join(",") + "]";
}

/** The schema, and its named types by their full names. */
export function parseSchema(text) {
  let root;
  try {
    root = JSON.parse(text);
  } catch { root = text.trim(); }
  if (!root) throw new Error("there is no schema");
  const named = new Map();
  name(root, "", named, 0);
  return { root, named };
}

function name(schema, space, named, depth) {
  if (depth > DEPTH_MAX) throw new Error("the schema is nested too deep");
  if (Array.isArray(schema)) schema.forEach((each) => name(each, space, named, depth + 1));
  if (!schema || typeof schema !== "object") return;
  let inner = space;
  if (["record", "error", "enum", "fixed"].includes(schema.type)) {
    const full = String(schema.name).includes(".") || !(schema.namespace || space)
      ? String(schema.name) : `${schema.namespace || space}.${schema.name}`;
    named.set(full, schema);
    named.set(full.split(".").pop(), schema);
    inner = full.includes(".") ? full.slice(0, full.lastIndexOf(".")) : "";
    for (const each of schema.fields || []) name(each.type, inner, named, depth + 1);
  } else {
    for (const each of [schema.type, schema.items, schema.values]) name(each, inner, named, depth + 1);
  }
}

class Reader {
  constructor(data, at, named) {
    this.data = data;
    this.view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    this.at = at;
    this.named = named;
    this.items = 0;
  }

  item() {
    this.items += 1;
    if (this.items > ITEMS_MAX) throw new Error(`it has more than ${ITEMS_MAX} items`);
  }

  take(size) {
    if (!(size >= 0 && size <= this.data.length - this.at)) throw new Error("it ends too early");
    this.at += size;
    return this.data.subarray(this.at - size, this.at);
  }

  long() {
    let value = 0n, shift = 0n;
    for (;;) {
      const byte = this.take(1)[0];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
      shift += 7n;
      if (shift > 63n) throw new Error("a number is too long");
    }
    return (value >> 1n) ^ -(value & 1n);
  }

  size() {
    const value = this.long();
    if (value < 0n || value > 1n << 31n) throw new Error("a length is not right");
    return Number(value);
  }

  text() {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.take(this.size()));
  }

  /** Items in blocks, each with its count, a negative one with its bytes; 0 ends them. */
  blocks(depth, each) {
    for (;;) {
      let count = this.long();
      if (count === 0n) return;
      if (count < 0n) {
        count = -count;
        this.long();
      }
      if (count > BigInt(ITEMS_MAX)) throw new Error(`it has more than ${ITEMS_MAX} items`);
      for (let at = 0n; at < count; at += 1n) {
        this.item();
        each();
      }
    }
  }

  /** JSON text of one value. */
  read(schema, depth) {
    if (depth > DEPTH_MAX) throw new Error("it is nested too deep");
    this.item();
    if (Array.isArray(schema)) {
      const chosen = schema[this.size()];
      if (chosen === undefined) throw new Error("a union has no such branch");
      return this.read(chosen, depth + 1);
    }
    const kind = typeof schema === "object" && schema ? schema.type : schema;
    if (typeof kind === "object" && kind) return this.read(kind, depth + 1);
    switch (kind) {
      case "null": return "null";
      case "boolean": return this.take(1)[0] ? "true" : "false";
      case "int": case "long": return String(this.long());
      case "float": return this.real(4);
      case "double": return this.real(8);
      case "string": return JSON.stringify(this.text());
      case "bytes": return this.raw(this.take(this.size()));
      case "fixed": return this.raw(this.take(schema.size));
      case "enum": {
        const symbol = schema.symbols[this.size()];
        if (symbol === undefined) throw new Error("an enum has no such symbol");
        return JSON.stringify(symbol);
      }
      case "array": {
        const items = [];
        this.blocks(depth, () => items.push(this.read(schema.items, depth + 1)));
        return "[" + items.join(",") + "]";
      }
      case "map": {
        const items = [];
        this.blocks(depth, () => items.push(JSON.stringify(this.text()) + ":" + this.read(schema.values, depth + 1)));
        return "{" + items.join(",") + "}";
      }
      case "record": case "error":
        return "{" + schema.fields.map((each) => JSON.stringify(String(each.name)) + ":" + this.read(each.type, depth + 1)).join(",") + "}";
      default: {
        const found = typeof kind === "string" && this.named.get(kind);
        if (!found || found === schema) throw new Error(`the schema has an unknown type ${String(kind).slice(0, 40)}`);
        return this.read(found, depth + 1);
      }
    }
  }

  real(size) {
    const at = this.at;
    this.take(size);
    const value = size === 4 ? this.view.getFloat32(at, true) : this.view.getFloat64(at, true);
    return isFinite(value) ? String(value) : JSON.stringify(String(value));
  }

  raw(data) {
    return JSON.stringify(Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join(""));
  }
}
