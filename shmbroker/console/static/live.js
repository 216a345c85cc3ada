// Asking the console: answers, changes, what is asked again and again, and streams of events. All of
// it stops with the page that asked (its signal), and rests while nobody sees the page.

export class Refused extends Error {}
export class Unreachable extends Refused {}

let token = "";

/** The parsed answer to GET /api/PATH?params; Refused with the reason if there is none. */
export async function get(path, params, signal) {
  return answered(await reach("/api/" + path + query(params), { signal }));
}

/** The parsed answer to POST /api/write/PATH. */
export async function change(path, body) {
  const headers = { "Content-Type": "application/json", "X-Shmbroker-Token": token };
  return answered(await reach("/api/write/" + path, { method: "POST", headers, body: JSON.stringify(body) }));
}

/** What the console is, and whether it may change something. */
export async function session() {
  const found = await get("session");
  token = found.token;
  return found;
}

async function reach(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("The console does not answer.");
  }
}

async function answered(response) {
  const found = await response.json().catch(() => ({ error: "The answer is not whole." }));
  if (!response.ok || found.error) throw new Refused(found.error || "status " + response.status);
  return found;
}

export function query(params) {
  const kept = Object.entries(params || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return kept.length ? "?" + new URLSearchParams(kept) : "";
}

/** Call `look` now and every `ms` until the signal; not while the page is hidden. Throws what the
 * first look does; who can't be reached is told to the frame, which shows it. */
export function every(ms, look, signal) {
  let timer = 0;
  const turn = async (isFirst) => {
    clearTimeout(timer);
    if (signal.aborted) return;
    if (!document.hidden) {
      try {
        await look();
      } catch (error) {
        if (error.name === "AbortError") return;
        if (error instanceof Unreachable) document.dispatchEvent(new CustomEvent("refused", { detail: error.message }));
        if (isFirst === true) {
          timer = setTimeout(turn, ms);
          throw error;
        }
      }
    }
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); }, { signal });
  return turn(true);
}

/** Server-sent events of /api/PATH: `on` has a function for each name; returns what ends it. */
export function stream(path, params, on, signal) {
  const source = new EventSource("/api/" + path + query(params));
  let isOpen = false;
  const end = () => source.close();
  for (const [name, take] of Object.entries(on)) {
    source.addEventListener(name, (event) => {
      if (event.data !== undefined) take(JSON.parse(event.data));
    });
  }
  source.addEventListener("opened", () => { isOpen = true; });
  source.addEventListener("end", end);
  source.onerror = async () => {
    end();
    if (signal.aborted) return;
    let reason = "The console has ended it.";
    if (!isOpen) {
      // an EventSource does not tell the reason; who asks again as a page does gets it
      try {
        const control = new AbortController();
        const response = await fetch("/api/" + path + query(params), { signal: control.signal });
        if (response.ok) control.abort();
        else reason = (await response.json()).error;
      } catch { reason = "The console does not answer."; }
    }
    on.failed({ error: reason });
  };
  signal.addEventListener("abort", end);
  return end;
}
