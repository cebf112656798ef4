// Workers: a table with a filter, and orders for those who may give them.

import { useState } from "preact/hooks";
import { Adapters } from "./adapters";
import { OrderDialog, WorkerActions, type Order } from "./controls";
import { Experts } from "./experts";
import { count, rate } from "./format";
import { Empty, Meter, RoleLabel, Section, StateLabel, TableFrame, Tiers } from "./parts";
import { PoolTable } from "./pools";
import type { ModelRow, State, WorkerRow } from "./state";

export function Workers({ state, model, canControl }: { state: State; model: ModelRow; canControl: boolean }) {
  const [text, setText] = useState("");
  const [role, setRole] = useState("");
  const [order, setOrder] = useState<Order | null>(null);
  const [outcome, setOutcome] = useState("");
  const matching = state.workers
    .filter((worker) => (!role || worker.role === role) && `${worker.id} ${worker.address} ${worker.state}`.includes(text.trim()))
    .sort(inOrder);
  const cut = state.num_workers > state.workers.length;
  const note = cut
    ? `The ${state.workers.length} of ${count(state.num_workers)} that need attention or have the highest load.`
    : undefined;
  return (
    <>
      <Section title="Pools">
        <PoolTable state={state} />
      </Section>
      <Section title="Workers" note={note}>
        <form class="filters" onSubmit={(event) => event.preventDefault()}>
          <label>
            Filter
            <input type="search" value={text} placeholder="id, address or state" onInput={(event) => setText(event.currentTarget.value)} />
          </label>
          <label>
            Role
            <select value={role} onChange={(event) => setRole(event.currentTarget.value)}>
              <option value="">all</option>
              <option value="prefill">prefill</option>
              <option value="decode">decode</option>
              <option value="both">colocated</option>
            </select>
          </label>
          <p class="outcome" role="status">
            {outcome}
          </p>
        </form>
        {matching.length ? <WorkerTable workers={matching} onOrder={canControl ? setOrder : null} /> : <Empty>No worker matches.</Empty>}
        {!canControl && <p class="note">Workers cannot be drained from here: that needs an admin key, or without API keys the router's own machine.</p>}
      </Section>
      <Experts workers={state.workers.filter((worker) => worker.model === model.name)} />
      <Adapters model={model} />
      {order && (
        <OrderDialog
          order={order}
          onClose={(done) => {
            setOrder(null);
            setOutcome(done ?? "");
          }}
        />
      )}
    </>
  );
}

const collator = new Intl.Collator("en", { numeric: true });
const ROLE_ORDER = ["prefill", "decode", "both", ""];

// Workers that need attention first. Rows move only when a state changes, so that buttons stay where they are.
function inOrder(one: WorkerRow, other: WorkerRow): number {
  return (
    Number(one.state === "ready") - Number(other.state === "ready") ||
    ROLE_ORDER.indexOf(one.role) - ROLE_ORDER.indexOf(other.role) ||
    collator.compare(`${one.id} ${one.address}`, `${other.id} ${other.address}`)
  );
}

function WorkerTable({ workers, onOrder }: { workers: WorkerRow[]; onOrder: ((order: Order) => void) | null }) {
  return (
    <TableFrame label="Workers">
      <table class="stacked workers">
        <thead>
          <tr>
            <th scope="col">Worker</th>
            <th scope="col">Role</th>
            <th scope="col">State</th>
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
            <th scope="col" class="right wide">
              Handovers
            </th>
            {onOrder && <th scope="col">Actions</th>}
          </tr>
        </thead>
        <tbody>
          {workers.map((worker) => (
            <WorkerLine key={worker.address} worker={worker} onOrder={onOrder} />
          ))}
        </tbody>
      </table>
    </TableFrame>
  );
}

function WorkerLine({ worker, onOrder }: { worker: WorkerRow; onOrder: ((order: Order) => void) | null }) {
  const known = worker.state !== "lost" && worker.state !== "connecting";
  return (
    <tr class={known ? "" : "dim"}>
      <th scope="row">
        {worker.id || "unknown"}
        <span class="sub">
          <code>{shortAddress(worker.address)}</code>
        </span>
      </th>
      <td data-label="Role">
        <RoleLabel role={worker.role} />
      </td>
      <td data-label="State">
        <StateLabel state={worker.state} />
        {worker.error && <span class="sub error-text">{worker.error}</span>}
      </td>
      <td data-label="KV in use">
        {known && <Meter value={worker.kv_used} label={`KV in use on ${worker.id}`} />}
        <Tiers tiers={worker.tiers} />
      </td>
      <td class="right num" data-label="Running">{known ? count(worker.running) : "–"}</td>
      <td class="right num" data-label="Waiting">
        {known ? count(worker.waiting) : "–"}
        {worker.receiving > 0 && <span class="sub">{count(worker.receiving)} receive KV</span>}
      </td>
      <td class="right num wide" data-label="Prompt tokens/s">{known ? rate(worker.rates.prefilled) : "–"}</td>
      <td class="right num wide">{known ? rate(worker.rates.generated) : "–"}</td>
      <td class="right num wide">{known ? count(worker.handovers) : "–"}</td>
      {onOrder && (
        <td data-label="Actions">
          <WorkerActions worker={worker} onOrder={onOrder} />
        </td>
      )}
    </tr>
  );
}

// Sockets of one machine have long paths, of which the last part tells them apart.
function shortAddress(address: string): string {
  return address.startsWith("unix:") ? `unix:…/${address.slice(address.lastIndexOf("/") + 1)}` : address;
}
