// The timeline of one request, as router/tracing/timeline.py defines it, read again while the request runs.

import { useEffect, useState } from "preact/hooks";
import { errorText } from "./events";
import { keyHeaders } from "./key";

export type Attribute = string | number | boolean | string[];
export type Attributes = Record<string, Attribute>;

export interface TimelineEvent {
  name: string;
  at_s: number;
  attributes: Attributes;
}

export interface TimelineSpan {
  name: string;
  where: string;
  depth: number;
  start_s: number;
  duration_s: number;
  running: boolean;
  attributes: Attributes;
  events: TimelineEvent[];
  error: string | null;
  reason: string;
}

export interface Timeline {
  request_id: string;
  trace_id: string;
  sampled: boolean;
  model: string;
  begun_at: number;
  same_id_begun_at?: number[]; // of the last requests with this id, ascending; routers of earlier versions lack it
  duration_s: number;
  running: boolean;
  attributes: Attributes;
  spans: TimelineSpan[];
  dropped_spans: number;
}

export type Lookup =
  | { kind: "loading" }
  | { kind: "found"; timeline: Timeline }
  | { kind: "missing"; text: string }
  | { kind: "failed"; text: string }; // it is tried again

const RUNNING_MS = 1000;
const FAILED_MS = 2000;
const MISSING = [400, 404, 414, 431]; // no such timeline, or an id that is too long; others, such as 401, may pass

// Returns what is known of a request, and a function that looks again. `isFrozen`: a running request is not read again.
export function useTimeline(id: string, begunAt: string, isFrozen: boolean): [Lookup, () => void] {
  const [lookup, setLookup] = useState<Lookup>({ kind: "loading" });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    let timer = 0;
    const look = async () => {
      const found = await read(id, begunAt, abort.signal);
      if (abort.signal.aborted) return;
      setLookup((before) => (found.kind === "failed" && before.kind === "found" ? before : found));
      const pause_ms = pauseAfter(found, isFrozen);
      if (pause_ms != null) timer = window.setTimeout(() => void look(), pause_ms);
    };
    void look();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [id, begunAt, isFrozen, attempt]);
  return [lookup, () => setAttempt((before) => before + 1)];
}

function pauseAfter(lookup: Lookup, isFrozen: boolean): number | null {
  if (lookup.kind === "failed") return FAILED_MS;
  return lookup.kind === "found" && lookup.timeline.running && !isFrozen ? RUNNING_MS : null;
}

async function read(id: string, begunAt: string, signal: AbortSignal): Promise<Lookup> {
  if (id === "." || id === "..") return { kind: "missing", text: "Addresses cannot contain this id, also if it is encoded." };
  try {
    const path = `timelines/${encodeURIComponent(id)}${begunAt && `?begun_at=${begunAt}`}`;
    const response = await fetch(path, { headers: keyHeaders(), signal, cache: "no-store" });
    if (response.ok) return { kind: "found", timeline: (await response.json()) as Timeline };
    const text = await errorText(response);
    return { kind: MISSING.includes(response.status) ? "missing" : "failed", text };
  } catch {
    return { kind: "failed", text: "The router does not respond." };
  }
}

export function numberOf(attributes: Attributes, name: string): number | null {
  const value = attributes[name];
  return typeof value === "number" ? value : null;
}

// Seconds until the first token of any completion; null: there is none.
export function firstTokenAt(timeline: Timeline): number | null {
  const times = timeline.spans.flatMap(({ events }) => events.filter(({ name }) => name === "first_token").map(({ at_s }) => at_s));
  return numberOf(timeline.attributes, "gen_ai.latency.time_to_first_token") ?? (times.length ? Math.min(...times) : null);
}
