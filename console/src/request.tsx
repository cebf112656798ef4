// One request: its figures, and its way over the router and its workers.

import { useEffect, useRef } from "preact/hooks";
import { clock, count, seconds } from "./format";
import { Empty, Section, Tile } from "./parts";
import { requestHref } from "./route";
import { SpanTable } from "./spans";
import type { RequestRow, StageName, State } from "./state";
import { firstTokenAt, numberOf, useTimeline, type Timeline } from "./timeline";

interface LiveRow {
  stage: StageName;
  row: RequestRow;
}

// `isPaused`: a running request is not read again.
export function RequestPage({ id, begunAt, state, isPaused }: { id: string; begunAt: string; state: State; isPaused: boolean }) {
  const heading = useRef<HTMLDivElement>(null);
  useEffect(() => {
    scrollTo(0, 0);
    heading.current?.focus({ preventScroll: true });
  }, [id]);
  const live = liveRows(id, state);
  return (
    <>
      <div class="request-head" ref={heading} tabIndex={-1} aria-label={`Request ${id}`} role="group">
        <a href="#requests">← All requests</a>
        <code>{id}</code>
      </div>
      {state.keeps_timelines ? <Found id={id} begunAt={begunAt} live={live} isPaused={isPaused} /> : <NotKept live={live} />}
    </>
  );
}

function liveRows(id: string, state: State): LiveRow[] {
  const stages = state.models.flatMap((model) => model.stages);
  return stages.flatMap(({ stage, requests }) => requests.filter((row) => row.id === id).map((row) => ({ stage, row })));
}

function Found({ id, begunAt, live, isPaused }: { id: string; begunAt: string; live: LiveRow[]; isPaused: boolean }) {
  const [lookup, again] = useTimeline(id, begunAt, isPaused);
  if (lookup.kind === "found") return <TimelineView timeline={lookup.timeline} live={live} />;
  if (lookup.kind === "loading") return <Empty>Looking for the request…</Empty>;
  if (lookup.kind === "failed")
    return (
      <p class="error" role="alert">
        {lookup.text.replace(/\.$/, "")}. The console tries again.
      </p>
    );
  return (
    <Section title="Not found">
      <p role="status">{lookup.text}</p>
      <p class="note">
        A router keeps the timelines of its most recent requests only, as many as <code>--keep-timelines</code> allows. With several routers, only the
        one that served a request has its timeline. Requests of batches, and those without a valid API key, have none.
      </p>
      <button type="button" class="look-again" onClick={again}>
        Look again
      </button>
    </Section>
  );
}

function NotKept({ live }: { live: LiveRow[] }) {
  return (
    <Section title="Timeline">
      <p role="status">
        This router keeps no timelines. Start it with <code>--keep-timelines 1000</code> to see where the time of each request goes.
      </p>
      {live.length > 0 && <Progress live={live} />}
    </Section>
  );
}

function Progress({ live }: { live: LiveRow[] }) {
  return (
    <ul class="progress">
      {live.map(({ stage, row }, place) => (
        <li key={place} class={`stage-${stage}`}>
          <span class="swatch" aria-hidden="true" />
          {row.index > 0 && `Completion ${row.index + 1}: `}
          {stage}, {count(row.tokens)} of {count(row.max_tokens)} tokens{row.decode && ` at ${row.decode}`}
        </li>
      ))}
    </ul>
  );
}

function TimelineView({ timeline, live }: { timeline: Timeline; live: LiveRow[] }) {
  const { attributes, spans } = timeline;
  const cached = numberOf(attributes, "gen_ai.usage.cache_read.input_tokens");
  const processes = new Set(spans.map(({ where }) => where)).size;
  return (
    <>
      <Section title="Request" note={`${timeline.model || "no served model"}, arrived at ${clock(timeline.begun_at)}`}>
        <dl class="tiles">
          <Tile name="State" value={stateOf(timeline)} more={resultOf(timeline)} alarm={Boolean(failureOf(timeline))} />
          <Tile name={timeline.running ? "Running for" : "Total"} value={seconds(timeline.duration_s)} />
          <Tile name="TTFT" value={seconds(firstTokenAt(timeline))} />
          <Tile
            name="Prompt tokens"
            value={count(numberOf(attributes, "gen_ai.usage.input_tokens"))}
            more={cached ? `${count(cached)} cached` : undefined}
          />
          <Tile name="Output tokens" value={count(outputTokens(timeline, live))} />
        </dl>
        <p class="visually-hidden" role="status">
          {`The request ${STATES[stateOf(timeline)]}.`}
        </p>
        {timeline.running && live.length > 0 && <Progress live={live} />}
        <SameId timeline={timeline} />
      </Section>
      <Section title="Timeline" note={timeline.running ? "The workers' spans follow when their attempt has ended." : `${spans.length} spans in ${processes} ${processes === 1 ? "process" : "processes"}`}>
        <SpanTable timeline={timeline} />
        {timeline.dropped_spans > 0 && <p class="note">{count(timeline.dropped_spans)} further spans were dropped.</p>}
        {timeline.sampled && (
          <p class="note">
            Exported as trace <code class="trace-id">{timeline.trace_id}</code>
          </p>
        )}
      </Section>
    </>
  );
}

// Links to the other requests with this id: clients may choose ids, and use one again.
function SameId({ timeline }: { timeline: Timeline }) {
  const others = (timeline.same_id_begun_at ?? []).filter((time) => time !== timeline.begun_at);
  if (!others.length) return null;
  return (
    <nav class="note" aria-label="Requests with the same id">
      Other requests with this id arrived at{" "}
      {others.map((time, place) => (
        <span key={time}>
          {place > 0 && ", "}
          <a class="num" href={requestHref(timeline.request_id, time)}>
            {clock(time)}
          </a>
        </span>
      ))}
    </nav>
  );
}

function failureOf(timeline: Timeline): string {
  return timeline.spans[0]?.error ?? "";
}

const STATES = { running: "is running", finished: "has finished", failed: "has failed", cancelled: "was cancelled" };

function stateOf(timeline: Timeline): keyof typeof STATES {
  if (timeline.running) return "running";
  if (failureOf(timeline)) return "failed";
  return timeline.spans[0]?.events.some(({ name }) => name === "client_gone") ? "cancelled" : "finished";
}

function resultOf(timeline: Timeline): string | undefined {
  const reasons = timeline.attributes["gen_ai.response.finish_reasons"];
  return failureOf(timeline) || (Array.isArray(reasons) ? [...new Set(reasons)].join(", ") : undefined);
}

function outputTokens(timeline: Timeline, live: LiveRow[]): number | null {
  const ended = numberOf(timeline.attributes, "gen_ai.usage.output_tokens"); // of the completions that have ended
  if (!timeline.running || !live.length) return ended;
  return live.reduce((sum, { row }) => sum + row.tokens, ended ?? 0);
}
