// All requests: a form to look one up, the live ones by stage, those that ended a short time ago.

import { useState } from "preact/hooks";
import { clock, count, seconds } from "./format";
import { perProcess } from "./overview";
import { Empty, RequestLink, Section, TableFrame } from "./parts";
import { RequestLanes } from "./relay";
import { requestHref } from "./route";
import type { ModelRow, RecentRequest, State } from "./state";

export function Requests({ state, model }: { state: State; model: ModelRow }) {
  return (
    <>
      <LookupForm />
      <Section title="Live requests" note={perProcess(state)}>
        <RequestLanes model={model} />
      </Section>
      <Section title="Recent requests" note={state.keeps_timelines ? ["The last that ended, of all models.", perProcess(state)].filter(Boolean).join(" ") : undefined}>
        <Recent state={state} />
      </Section>
    </>
  );
}

function LookupForm() {
  const [id, setId] = useState("");
  return (
    <form
      class="filters"
      onSubmit={(event) => {
        event.preventDefault();
        if (id.trim()) location.hash = requestHref(id.trim());
      }}
    >
      <label>
        Request id
        <input type="search" class="id-field" value={id} placeholder="x-request-id of a response" spellcheck={false} onInput={(event) => setId(event.currentTarget.value)} />
      </label>
      <button type="submit" disabled={!id.trim()}>
        Show timeline
      </button>
    </form>
  );
}

function Recent({ state }: { state: State }) {
  if (!state.keeps_timelines)
    return (
      <Empty>
        This router keeps no timelines. Start it with <code>--keep-timelines 1000</code> to see them here.
      </Empty>
    );
  if (!state.recent.length) return <Empty>No request has ended yet.</Empty>;
  const several = state.models.length > 1;
  return (
    <TableFrame label="Recent requests">
      <table class="stacked recent">
        <thead>
          <tr>
            <th scope="col">Request</th>
            <th scope="col">Arrived</th>
            {several && <th scope="col">Model</th>}
            <th scope="col">State</th>
            <th scope="col" class="right">
              TTFT
            </th>
            <th scope="col" class="right">
              Total
            </th>
            <th scope="col" class="right">
              Prompt tokens
            </th>
            <th scope="col" class="right">
              Output tokens
            </th>
          </tr>
        </thead>
        <tbody>
          {state.recent.map((request, place) => (
            <RecentLine key={`${request.id}-${request.begun_at}-${state.recent.length - place}`} request={request} hasModel={several} />
          ))}
        </tbody>
      </table>
    </TableFrame>
  );
}

function Outcome({ request: { error, client_gone } }: { request: RecentRequest }) {
  const [tone, mark, text] = error ? ["lost", "✕", error] : client_gone ? ["draining", "○", "cancelled"] : ["ready", "●", "finished"];
  return (
    <span class={`state state-${tone}`}>
      <span aria-hidden="true">{mark}</span> {text}
    </span>
  );
}

function RecentLine({ request, hasModel }: { request: RecentRequest; hasModel: boolean }) {
  return (
    <tr>
      <th scope="row">
        <RequestLink id={request.id} begunAt={request.begun_at} />
      </th>
      <td class="num" data-label="Arrived">{clock(request.begun_at)}</td>
      {hasModel && <td data-label="Model">{request.model || "–"}</td>}
      <td data-label="State">
        <Outcome request={request} />
      </td>
      <td class="right num" data-label="TTFT">{seconds(request.ttft_s)}</td>
      <td class="right num" data-label="Total">{seconds(request.duration_s)}</td>
      <td class="right num" data-label="Prompt tokens">{count(request.prompt_tokens)}</td>
      <td class="right num" data-label="Output tokens">{count(request.output_tokens)}</td>
    </tr>
  );
}
