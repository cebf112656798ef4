// The stream of states: connects, and reconnects after a pause.

import { errorText, serverEvents } from "./events";
import { keyHeaders } from "./key";
import type { State } from "./state";

export type Link =
  | { kind: "connecting" }
  | { kind: "live" }
  | { kind: "lost"; text: string }
  | { kind: "key"; text: string }; // a key is needed, or another one

export interface FeedListener {
  link(link: Link): void;
  state(state: State): void;
  rights(canControl: boolean): void;
}

const PAUSE_MS = 2000;
const STALE_MS = 10_000; // without a message the connection counts as lost

export function follow(listener: FeedListener): () => void {
  let ended = false;
  let abort = new AbortController();
  const run = async () => {
    while (!ended) {
      abort = new AbortController();
      const link = await session(listener, abort);
      if (ended) return;
      listener.link(link);
      if (link.kind === "key") return;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  };
  void run();
  return () => {
    ended = true;
    abort.abort();
  };
}

async function session(listener: FeedListener, abort: AbortController): Promise<Link> {
  let timer = 0;
  const watch = () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => abort.abort(), STALE_MS);
  };
  try {
    watch();
    const response = await fetch("console/events", { headers: keyHeaders(), signal: abort.signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) return { kind: "key", text: await errorText(response) };
    if (!response.ok || !response.body) return { kind: "lost", text: await errorText(response) };
    for await (const event of serverEvents(response.body)) {
      watch();
      if (event.name === "hello") listener.rights((JSON.parse(event.data) as { can_control: boolean }).can_control);
      else if (event.name === "state") {
        listener.link({ kind: "live" });
        listener.state(JSON.parse(event.data) as State);
      }
    }
    return { kind: "lost", text: "The router ended the connection." };
  } catch {
    return { kind: "lost", text: "The router does not respond." };
  } finally {
    clearTimeout(timer);
  }
}
