// The way of requests: queued, prefill, handover, decode. As a strip of counts, or as lanes with each request.

import { count, seconds } from "./format";
import { Empty, RequestLink } from "./parts";
import type { ModelRow, RequestRow, StageName, StageRow } from "./state";

const STAGES: Record<StageName, { title: string; meaning: string }> = {
  queued: { title: "Queued", meaning: "waits for admission or a worker" },
  prefill: { title: "Prefill", meaning: "its prompt is computed" },
  handover: { title: "Handover", meaning: "its KV moves to the decode worker" },
  decode: { title: "Decode", meaning: "its tokens are generated" },
};

function numIn(row: StageRow, model: ModelRow): number {
  return row.stage === "queued" ? row.num + model.waiting : row.num;
}

export function RelayStrip({ model }: { model: ModelRow }) {
  return (
    <ol class="relay" aria-label="Live requests by stage">
      {model.stages.map((row) => (
        <li key={row.stage} class={`relay-stage stage-${row.stage}`}>
          <span class="relay-title">
            <span class="swatch" aria-hidden="true" />
            {STAGES[row.stage].title}
          </span>
          <span class="relay-count num">{count(numIn(row, model))}</span>
          <Dots num={numIn(row, model)} />
        </li>
      ))}
    </ol>
  );
}

function Dots({ num }: { num: number }) {
  const shown = Math.min(num, 40);
  return (
    <svg class="dots" viewBox="0 0 160 16" aria-hidden="true" preserveAspectRatio="xMinYMid meet">
      {Array.from({ length: shown }, (_, place) => (
        <circle key={place} cx={4 + (place % 20) * 8} cy={4 + Math.floor(place / 20) * 8} r="2.6" />
      ))}
    </svg>
  );
}

export function RequestLanes({ model }: { model: ModelRow }) {
  return (
    <div class="lanes">
      {model.stages.map((row) => (
        <section key={row.stage} class={`lane stage-${row.stage}`} aria-labelledby={`lane-${row.stage}`}>
          <h3 id={`lane-${row.stage}`}>
            <span class="swatch" aria-hidden="true" />
            {STAGES[row.stage].title} <span class="num lane-count">{count(numIn(row, model))}</span>
          </h3>
          <p class="note">{STAGES[row.stage].meaning}</p>
          {row.stage === "queued" && model.waiting > 0 && (
            <p class="lane-note">
              {count(model.waiting)} in the router's queue, the oldest for {seconds(model.oldest_wait_s)}
            </p>
          )}
          <ul>
            {row.requests.map((request, place) => (
              <Card key={place} request={request} stage={row.stage} />
            ))}
          </ul>
          {numIn(row, model) === 0 && <Empty>none</Empty>}
          {row.num > row.requests.length && <p class="note">and {count(row.num - row.requests.length)} more</p>}
        </section>
      ))}
    </div>
  );
}

function Card({ request, stage }: { request: RequestRow; stage: StageName }) {
  const share = request.max_tokens ? Math.min(1, request.tokens / request.max_tokens) : 0;
  return (
    <li class="card">
      <div class="card-head">
        <span class="card-id">
          <RequestLink id={request.id} />
          {request.index > 0 && ` · ${request.index}`}
        </span>
        <span class="num">{seconds(request.age_s)}</span>
      </div>
      {request.decode && (
        <div class="card-way">
          {request.prefill && (
            <>
              {request.prefill} <span aria-label="hands over to">→</span>{" "}
            </>
          )}
          {request.decode}
          {request.attempts > 1 && <span class="card-retry"> attempt {request.attempts}</span>}
        </div>
      )}
      <div class="card-figures num">
        <span>prompt {count(request.prompt_tokens)}</span>
        {request.ttft_s != null && <span>TTFT {seconds(request.ttft_s)}</span>}
        {stage === "decode" && (
          <span>
            {count(request.tokens)} of {count(request.max_tokens)}
          </span>
        )}
      </div>
      {stage === "decode" && (
        <svg class="card-progress" viewBox="0 0 100 2" preserveAspectRatio="none" aria-hidden="true">
          <rect class="meter-track" width="100" height="2" />
          <rect class="card-fill" width={share * 100} height="2" />
        </svg>
      )}
    </li>
  );
}
