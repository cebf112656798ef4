// Expert-parallel groups: which experts each rank holds, and how even their load is.

import { count, percent, ranges } from "./format";
import { Section, TableFrame } from "./parts";
import type { ExpertRow, WorkerRow } from "./state";

interface Rank {
  worker: WorkerRow;
  experts: ExpertRow;
}

export function Experts({ workers }: { workers: WorkerRow[] }) {
  const groups = new Map<string, Rank[]>();
  for (const worker of workers) {
    if (!worker.experts) continue;
    const { group } = worker.experts;
    groups.set(group, [...(groups.get(group) ?? []), { worker, experts: worker.experts }]);
  }
  return (
    <>
      {[...groups].sort(([one], [other]) => one.localeCompare(other)).map(([name, ranks]) => (
        <Group key={name} title={groups.size > 1 ? `Experts of ${name}` : "Experts"} ranks={ranks} />
      ))}
    </>
  );
}

function Group({ title, ranks }: { title: string; ranks: Rank[] }) {
  ranks.sort((one, other) => one.experts.rank - other.experts.rank);
  const total = ranks.reduce((sum, { experts }) => sum + experts.rows, 0);
  const isWhole = ranks.every(({ experts }) => experts.ranks === ranks.length); // otherwise shares would be wrong
  const imbalance = Math.max(...ranks.map(({ experts }) => experts.imbalance));
  const layer = ranks[0]?.experts.layer ?? 0;
  const note = imbalance
    ? `Layer ${layer} has the most uneven load: at the last rebalance, its busiest rank had ${imbalance.toFixed(2)} times the mean.`
    : `Of layer ${layer}; no rebalance has compared the layers yet.`;
  return (
    <Section title={title} note={note}>
      <TableFrame label={title}>
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
                <td class="right num" data-label="Tokens computed">{isWhole && total ? percent(experts.rows / total) : count(experts.rows)}</td>
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
