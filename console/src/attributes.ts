// Attributes of a span as text. Workers report all of theirs as strings.

import { bytes, count, seconds } from "./format";
import type { Attribute, Attributes, TimelineSpan } from "./timeline";

type Describe = (value: string) => string;
const NOTHING = ["", "0", "0.0", "None"];

// What is shown of a span without opening it, in this order.
const SHOWN: [name: string, describe: Describe][] = [
  ["baton.plan", (value) => value],
  ["baton.predicted_ttft_s", (value) => `TTFT predicted ${seconds(Number(value))}`],
  ["baton.attempt", (value) => `attempt ${Number(value) + 1}`],
  ["baton.computed_tokens", (value) => `${count(Number(value))} tokens computed`],
  ["baton.pulled_tokens", (value) => `${count(Number(value))} pulled`],
  ["baton.cached_tokens", (value) => `${count(Number(value))} cached`],
  ["baton.num_blocks", (value) => `${count(Number(value))} blocks`],
  ["baton.num_bytes", (value) => bytes(Number(value))],
  ["baton.transport", (value) => `by ${value}`],
  ["baton.preemptions", (value) => `preempted ${count(Number(value))} times`],
];

export function summary(attributes: Attributes): string {
  return SHOWN.filter(([name]) => name in attributes && !NOTHING.includes(plain(attributes[name])))
    .map(([name, describe]) => describe(plain(attributes[name])))
    .join(", ");
}

// What went wrong in a span, also what was tried again.
export function troubles(span: TimelineSpan): string[] {
  const failure = span.error ? [[span.error, span.reason].filter(Boolean).join(": ")] : [];
  const retries = span.events
    .filter(({ name }) => name !== "first_token")
    .map(({ name, at_s, attributes }) => {
      const why = [attributes["error.type"], attributes["baton.reason"]].filter(Boolean).map(plain);
      return [`${eventName(name)} after ${seconds(at_s)}`, ...why].join(": ");
    });
  return [...retries, ...failure];
}

const EVENT_NAMES: Record<string, string> = { retry: "sent again", client_gone: "the client left", first_token: "first token" };

export function eventName(name: string): string {
  return EVENT_NAMES[name] ?? name.replaceAll("_", " ");
}

// The value with its unit, which the attribute's name has.
export function valueText(name: string, value: Attribute): string {
  const text = plain(value);
  const number = Number(text);
  if (!text || !Number.isFinite(number) || typeof value === "boolean") return text || "(empty)";
  if (name.endsWith("_s") || name.startsWith("gen_ai.latency") || name.includes("time_to_first")) return seconds(number);
  if (name.endsWith("_bytes")) return bytes(number);
  return text;
}

function plain(value: Attribute | undefined): string {
  return Array.isArray(value) ? value.join(", ") : String(value ?? "");
}
