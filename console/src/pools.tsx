// Pools: all workers of one role.

import { count, rate } from "./format";
import { Empty, Meter, RoleLabel, TableFrame, Tiers, roleName } from "./parts";
import type { State } from "./state";

export function PoolTable({ state }: { state: State }) {
  if (!state.pools.length) return <Empty>The router has not reached any worker yet.</Empty>;
  const several = state.models.length > 1;
  return (
    <TableFrame label="Pools">
      <table class="stacked">
        <thead>
          <tr>
            <th scope="col">Pool</th>
            {several && <th scope="col">Model</th>}
            <th scope="col" class="right">
              Ready
            </th>
            <th scope="col">KV in use</th>
            <th scope="col" class="right">
              Running
            </th>
            <th scope="col" class="right">
              Waiting
            </th>
            <th scope="col" class="right wide">
              Prompt tokens/s
            </th>
            <th scope="col" class="right wide">
              Output tokens/s
            </th>
          </tr>
        </thead>
        <tbody>
          {state.pools.map((pool) => (
            <tr key={`${pool.model}-${pool.role}`}>
              <th scope="row">
                <RoleLabel role={pool.role} />
              </th>
              {several && <td data-label="Model">{pool.model}</td>}
              <td class="right num nowrap" data-label="Ready">
                {pool.ready} of {pool.workers}
                {pool.draining > 0 && <span class="sub">{pool.draining} draining</span>}
              </td>
              <td data-label="KV in use">
                <Meter value={pool.kv_used} label={`KV in use in the ${roleName(pool.role)} pool`} />
                <Tiers tiers={pool.tiers} />
              </td>
              <td class="right num" data-label="Running">{count(pool.running)}</td>
              <td class="right num" data-label="Waiting">{count(pool.waiting)}</td>
              <td class="right num wide">{rate(pool.prefilled_per_s)}</td>
              <td class="right num wide">{rate(pool.generated_per_s)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </TableFrame>
  );
}
