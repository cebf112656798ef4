// The autoscaler's plan, and its latest decisions with their reasons.

import { clock, count } from "./format";
import { Empty, RoleLabel, Section, TableFrame } from "./parts";
import type { ModelRow, PlanRow } from "./state";

export function Planner({ model }: { model: ModelRow }) {
  if (!model.plan && !model.plans.length) {
    return (
      <Section title="Planner">
        <Empty>
          No autoscaler plans the pools of {model.name}. On Ray and Kubernetes one can; <code>baton plan --explain</code> shows what it would do.
        </Empty>
      </Section>
    );
  }
  return (
    <>
      <Section title="Current plan" note={model.plan ? undefined : "No autoscaler plans now; its last decisions are below."}>
        {model.plan && <Current plan={model.plan} />}
      </Section>
      <Section title="Decisions" note="Changes of the targets since this router process started, the latest first.">
        <Decisions plans={model.plans} />
      </Section>
    </>
  );
}

function Current({ plan }: { plan: PlanRow }) {
  return (
    <>
      <TableFrame label="Current plan" compact>
        <table>
          <thead>
            <tr>
              <th scope="col">Pool</th>
              <th scope="col" class="right">
                Asked for
              </th>
              <th scope="col" class="right">
                Needed
              </th>
            </tr>
          </thead>
          <tbody>
            <tr>
              <th scope="row">
                <RoleLabel role="prefill" />
              </th>
              <td class="right num">{count(plan.prefill_target)}</td>
              <td class="right num">{count(plan.prefill_needed)}</td>
            </tr>
            <tr>
              <th scope="row">
                <RoleLabel role="decode" />
              </th>
              <td class="right num">{count(plan.decode_target)}</td>
              <td class="right num">{count(plan.decode_needed)}</td>
            </tr>
          </tbody>
        </table>
      </TableFrame>
      <Reason text={plan.reason} />
    </>
  );
}

function Reason({ text }: { text: string }) {
  return (
    <ul class="reasons">
      {text.split("; ").map((part) => (
        <li key={part}>{part}</li>
      ))}
    </ul>
  );
}

function Decisions({ plans }: { plans: PlanRow[] }) {
  return (
    <ol class="decisions">
      {plans.map((plan) => (
        <li key={plan.time_s}>
          <p class="decision-head">
            <time class="num">{clock(plan.time_s)}</time>
            <b class="num">
              {plan.prefill_target} prefill, {plan.decode_target} decode
            </b>
          </p>
          <Reason text={plan.reason} />
        </li>
      ))}
    </ol>
  );
}
