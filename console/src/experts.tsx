// Expert-parallel workers: which experts each rank holds, and how even their load is.

import { count, percent, ranges } from "./format";
import { Section, TableFrame } from "./parts";
import type { ExpertRow, WorkerRow } from "./state";

interface Rank {
  worker: WorkerRow;
  experts: ExpertRow;
}

export function Experts({ workers }: { workers: WorkerRow[] }) {
  const ranks = workers.flatMap((worker): Rank[] => (worker.experts ? [{ worker, experts: worker.experts }] : []));
  if (!ranks.length) return null;
  ranks.sort((one, other) => one.experts.rank - other.experts.rank);
  const total = ranks.reduce((sum, { experts }) => sum + experts.rows, 0);
  const imbalance = Math.max(...ranks.map(({ experts }) => experts.imbalance));
  const layer = ranks[0]?.experts.layer ?? 0;
  const note = imbalance
    ? `Layer ${layer} has the most uneven load: at the last rebalance, its busiest rank had ${imbalance.toFixed(2)} times the mean.`
    : `Of layer ${layer}; no rebalance has compared the layers yet.`;
  return (
    <Section title="Experts" note={note}>
      <TableFrame label="Experts">
        <table class="stacked">
          <thead>
            <tr>
              <th scope="col">Worker</th>
              <th scope="col" class="right">
                Rank
              </th>
              <th scope="col" class="right">
                Tokens computed
              </th>
              <th scope="col">Experts it holds</th>
            </tr>
          </thead>
          <tbody>
            {ranks.map(({ worker, experts }) => (
              <tr key={worker.address}>
                <th scope="row">{worker.id}</th>
                <td class="right num nowrap" data-label="Rank">
                  {experts.rank} of {experts.ranks}
                </td>
                <td class="right num" data-label="Tokens computed">{total ? percent(experts.rows / total) : "–"}</td>
                <td class="num text" data-label="Experts it holds">
                  {ranges(experts.experts)}
                  {experts.num_experts > experts.experts.length && ` and ${count(experts.num_experts - experts.experts.length)} more`}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableFrame>
    </Section>
  );
}
