// The cluster at a glance: live requests, figures of the last minute, charts of the last five, pools, errors.

import { Chart } from "./chart";
import { clock, count, percent, rate, seconds } from "./format";
import { Empty, RequestLink, Section, TableFrame, Tile } from "./parts";
import { PoolTable } from "./pools";
import { RelayStrip } from "./relay";
import type { Figures, ModelRow, RecentError, State } from "./state";

export function Overview({ state, model }: { state: State; model: ModelRow }) {
  return (
    <>
      <Section title="Live requests">
        <RelayStrip model={model} />
      </Section>
      <Section title="Last minute" note={perProcess(state)}>
        <Tiles model={model} />
      </Section>
      <Section title="Last five minutes">
        <Charts state={state} model={model} />
      </Section>
      <Section title="Pools">
        <PoolTable state={state} />
      </Section>
      <Section title="Recent errors">
        <Errors errors={model.errors} />
      </Section>
    </>
  );
}

export function perProcess(state: State): string | undefined {
  if (state.processes < 2 || state.process == null) return undefined;
  return `Of router process ${state.process + 1} of ${state.processes}, which serves this page.`;
}

function Tiles({ model }: { model: ModelRow }) {
  const { total } = model;
  const planned = total.local + total.remote;
  return (
    <dl class="tiles">
      <Tile name="Completions" value={rate(total.completions_per_s)} unit="/s" />
      <Tile name="Output" value={rate(total.tokens_per_s)} unit="tokens/s" />
      <Tile name="TTFT p50" value={seconds(total.ttft_p50_s)} more={`p95 ${seconds(total.ttft_p95_s)}`} />
      <Tile name="TPOT p50" value={seconds(total.tpot_p50_s)} more={`p95 ${seconds(total.tpot_p95_s)}`} />
      <Tile name="Cache hits" value={percent(total.hit_rate)} more="of prompt tokens" />
      <Tile
        name="Remote prefill"
        value={planned ? percent(total.remote / planned) : "–"}
        more={`${count(total.remote)} of ${count(planned)}`}
      />
      {model.ttft_target_s != null && (
        <Tile
          name="On target"
          value={percent(total.on_target)}
          more={`${seconds(model.ttft_target_s)}, ${seconds(model.tpot_target_s)}`}
        />
      )}
      <Tile name="Errors" value={count(total.errors)} more="and refusals" alarm={total.errors > 0} />
    </dl>
  );
}

function Charts({ state, model }: { state: State; model: ModelRow }) {
  const values = (read: (figures: Figures) => number | null) => model.series.map(read);
  const common = { span_s: state.span_s };
  return (
    <div class="charts">
      <Chart {...common} title="TTFT" format={seconds} target={model.ttft_target_s} lines={[
        { name: "p50", tone: "tone-main", values: values((each) => each.ttft_p50_s) },
        { name: "p95", tone: "tone-soft", values: values((each) => each.ttft_p95_s) },
      ]} />
      <Chart {...common} title="TPOT" format={seconds} target={model.tpot_target_s} lines={[
        { name: "p50", tone: "tone-main", values: values((each) => each.tpot_p50_s) },
        { name: "p95", tone: "tone-soft", values: values((each) => each.tpot_p95_s) },
      ]} />
      <Chart {...common} title="Output tokens per second" format={rate} lines={[
        { name: "tokens/s", tone: "tone-decode", values: values((each) => each.tokens_per_s) },
      ]} />
      <Chart {...common} title="Plans per 5 s" format={count} stacked lines={[
        { name: "local", tone: "tone-decode", values: values((each) => each.local) },
        { name: "remote", tone: "tone-prefill", values: values((each) => each.remote) },
      ]} />
      <Chart {...common} title="Cache hits" format={percent} max={1} lines={[
        { name: "of prompt tokens", tone: "tone-main", values: values((each) => each.hit_rate) },
      ]} />
      <Chart {...common} title="Completions" format={rate} lines={[
        { name: "ended/s", tone: "tone-main", values: values((each) => each.completions_per_s) },
        { name: "errors/s", tone: "tone-alarm", values: values((each) => each.errors / state.span_s || null) },
      ]} />
    </div>
  );
}

function Errors({ errors }: { errors: RecentError[] }) {
  if (!errors.length) return <Empty>No request has failed lately.</Empty>;
  return (
    <TableFrame label="Recent errors">
      <table>
        <thead>
          <tr>
            <th scope="col">Time</th>
            <th scope="col">Status</th>
            <th scope="col">Error</th>
          </tr>
        </thead>
        <tbody>
          {errors.map((error, place) => (
            <tr key={`${error.time_s}-${place}`}>
              <td class="num">{clock(error.time_s)}</td>
              <td class="num">{error.status}</td>
              <td class="text">
                {error.text}
                {error.num > 1 && <span class="sub">{count(error.num)} requests in a row</span>}
                {error.request_id && (
                  <span class="sub">
                    <RequestLink id={error.request_id} />
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </TableFrame>
  );
}
