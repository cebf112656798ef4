// The spans of a request as a table with a bar each, which open to show their attributes.

import { Fragment } from "preact";
import { useState } from "preact/hooks";
import { eventName, summary, troubles, valueText } from "./attributes";
import { seconds } from "./format";
import { TableFrame } from "./parts";
import { firstTokenAt, type Timeline, type TimelineSpan } from "./timeline";

const WIDTH = 1000; // of the time line, in units of its drawings
const MIN_BAR = 3;
const MAX_INDENT = 5;

type Tone = "router" | "queued" | "prefill" | "handover" | "decode" | "failed";
const TONES: Record<string, Tone> = {
  admission: "queued",
  queue: "queued",
  prefill: "prefill",
  compute: "prefill",
  embed: "prefill",
  kv_transfer: "handover",
  decode: "decode",
};
const LEGEND: [tone: Tone, text: string][] = [
  ["router", "router"],
  ["queued", "waiting"],
  ["prefill", "prefill"],
  ["handover", "KV transfer"],
  ["decode", "decode"],
];

function toneOf(span: TimelineSpan): Tone {
  return span.error ? "failed" : (TONES[span.name] ?? "router");
}

export function SpanTable({ timeline }: { timeline: Timeline }) {
  const first_s = firstTokenAt(timeline);
  return (
    <>
      <p class="span-legend" aria-hidden="true">
        {LEGEND.map(([tone, text]) => (
          <span key={tone} class={`span-${tone}`}>
            <span class="swatch" />
            {text}
          </span>
        ))}
        {first_s != null && (
          <span>
            <span class="first-token-key" />
            first token
          </span>
        )}
      </p>
      <TableFrame label="spans of the request, in the order of their starts">
        <table class="spans">
          <thead>
            <tr>
              <th scope="col">Span</th>
              <th scope="col">Where</th>
              <th scope="col" class="right">
                Start
              </th>
              <th scope="col" class="right">
                Time
              </th>
              <th scope="col" class="span-axis">
                <span class="visually-hidden">Bar</span>
                <span class="axis-row num" aria-hidden="true">
                  <span>0</span>
                  <span>{seconds(timeline.duration_s / 2)}</span>
                  <span>{seconds(timeline.duration_s)}</span>
                </span>
              </th>
            </tr>
          </thead>
          <tbody>
            {keyed(timeline.spans).map(([key, span], place) => (
              <SpanRows key={key} span={span} place={place} total_s={timeline.duration_s} first_s={first_s} />
            ))}
          </tbody>
        </table>
      </TableFrame>
    </>
  );
}

// Returns the spans with keys that stay the same when a running request gets further spans between them.
function keyed(spans: TimelineSpan[]): [key: string, span: TimelineSpan][] {
  const counts = new Map<string, number>();
  return spans.map((span) => {
    const name = `${span.where} ${span.name} ${span.start_s}`;
    const number = counts.get(name) ?? 0;
    counts.set(name, number + 1);
    return [`${name} ${number}`, span];
  });
}

function SpanRows({ span, place, total_s, first_s }: { span: TimelineSpan; place: number; total_s: number; first_s: number | null }) {
  const [isOpen, setOpen] = useState(false);
  const about = summary(span.attributes);
  const indent = Math.min(MAX_INDENT, span.depth);
  return (
    <Fragment>
      <tr class={`span-row span-${toneOf(span)}`}>
        <th scope="row" class={`indent-${indent}`}>
          <button type="button" class="span-name" aria-expanded={isOpen} aria-controls={`span-${place}`} onClick={() => setOpen(!isOpen)}>
            <span class="span-arrow" aria-hidden="true" />
            {span.name}
          </button>
          {about && <span class="sub">{about}</span>}
          {troubles(span).map((text, number) => (
            <span key={number} class="sub span-trouble">
              {text}
            </span>
          ))}
        </th>
        <td class="span-where">{span.where}</td>
        <td class="right num span-start">{seconds(span.start_s)}</td>
        <td class="right num span-time">
          {seconds(span.duration_s)}
          {span.running && <span class="sub">running</span>}
        </td>
        <td class="span-line">
          <Bar span={span} total_s={total_s} first_s={first_s} />
        </td>
      </tr>
      <tr id={`span-${place}`} class="span-details" hidden={!isOpen}>
        <td colSpan={5}>{isOpen && <Details span={span} />}</td>
      </tr>
    </Fragment>
  );
}

function Bar({ span, total_s, first_s }: { span: TimelineSpan; total_s: number; first_s: number | null }) {
  const at = (time_s: number) => (total_s > 0 ? Math.min(WIDTH, Math.max(0, (time_s / total_s) * WIDTH)) : 0);
  const width = Math.max(MIN_BAR, at(span.start_s + span.duration_s) - at(span.start_s));
  const begin = Math.min(at(span.start_s), WIDTH - width);
  return (
    <svg viewBox={`0 0 ${WIDTH} 10`} preserveAspectRatio="none" aria-hidden="true">
      {[0.25, 0.5, 0.75].map((share) => (
        <line key={share} class="grid" x1={share * WIDTH} x2={share * WIDTH} y1="0" y2="10" />
      ))}
      <line class={span.running ? "span-bar span-open" : "span-bar"} x1={begin} x2={begin + width} y1="5" y2="5" />
      {first_s != null && <line class="first-token" x1={at(first_s)} x2={at(first_s)} y1="0" y2="10" />}
    </svg>
  );
}

function Details({ span }: { span: TimelineSpan }) {
  const attributes = Object.entries(span.attributes).sort(([one], [other]) => one.localeCompare(other));
  return (
    <>
      {span.events.length > 0 && (
        <ul class="span-events">
          {span.events.map((event, place) => (
            <li key={place} class="num">
              {seconds(event.at_s)} {eventName(event.name)}
            </li>
          ))}
        </ul>
      )}
      {attributes.length > 0 && (
        <dl class="headers">
          {attributes.map(([name, value]) => (
            <div key={name}>
              <dt>
                <code>{name}</code>
              </dt>
              <dd class="num">{valueText(name, value)}</dd>
            </div>
          ))}
        </dl>
      )}
      {!attributes.length && !span.events.length && <p class="note">No attributes.</p>}
    </>
  );
}
