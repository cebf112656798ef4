// Orders for a worker: drain, undrain, change of role. Each is confirmed in a dialog.

import { useEffect, useRef, useState } from "preact/hooks";
import { errorText } from "./events";
import { keyHeaders } from "./key";
import { roleName } from "./parts";
import type { Role, WorkerRow } from "./state";

export interface Order {
  worker: WorkerRow;
  action: "drain" | "undrain" | "role";
  role?: Role;
}

const ROLES: Role[] = ["prefill", "decode", "both"];

export function WorkerActions({ worker, onOrder }: { worker: WorkerRow; onOrder: (order: Order) => void }) {
  const drains = worker.state === "draining" || worker.state === "drained";
  const reachable = worker.state !== "lost" && worker.state !== "connecting";
  const name = worker.id || worker.address;
  return (
    <span class="actions">
      <button
        type="button"
        class="small"
        disabled={!reachable}
        aria-label={`${drains ? "Undrain" : "Drain"} ${name}`}
        onClick={() => onOrder({ worker, action: drains ? "undrain" : "drain" })}
      >
        {drains ? "Undrain" : "Drain"}
      </button>
      <select
        class="small"
        disabled={!reachable || drains}
        aria-label={`Change the role of ${name}`}
        value=""
        onChange={(event) => {
          const role = event.currentTarget.value as Role;
          event.currentTarget.value = "";
          if (role) onOrder({ worker, action: "role", role });
        }}
      >
        <option value="">Role…</option>
        {ROLES.filter((role) => role !== worker.role).map((role) => (
          <option key={role} value={role}>
            {roleName(role)}
          </option>
        ))}
      </select>
    </span>
  );
}

type Progress = { kind: "ask" } | { kind: "busy" } | { kind: "failed"; text: string };

export function OrderDialog({ order, onClose }: { order: Order; onClose: (done: string | null) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const outcome = useRef<string | null>(null);
  const [progress, setProgress] = useState<Progress>({ kind: "ask" });
  useEffect(() => dialog.current?.showModal(), []);
  const name = order.worker.id || order.worker.address;
  const send = async (force: boolean) => {
    setProgress({ kind: "busy" });
    const query = new URLSearchParams({ address: order.worker.address, force: String(force) });
    if (order.role) query.set("role", order.role);
    try {
      const response = await fetch(`console/workers/${order.action}?${query}`, { method: "POST", headers: keyHeaders() });
      if (response.ok) {
        outcome.current = `${title(order)}: ${response.status === 202 ? "in progress" : "done"}.`;
        dialog.current?.close(); // which returns the focus to the button
      } else setProgress({ kind: "failed", text: await errorText(response) });
    } catch {
      setProgress({ kind: "failed", text: "The router does not respond." });
    }
  };
  const canForce = progress.kind === "failed" && progress.text.includes("is the last");
  return (
    <dialog ref={dialog} aria-labelledby="order-title" onClose={() => onClose(outcome.current)}>
      <h2 id="order-title">{title(order)}</h2>
      <p>{meaning(order, name)}</p>
      {progress.kind === "failed" && (
        <p class="error" role="alert">
          {progress.text}
        </p>
      )}
      <div class="dialog-buttons">
        <button type="button" onClick={() => dialog.current?.close()}>
          Cancel
        </button>
        <button type="button" class={canForce ? "danger" : "primary"} disabled={progress.kind === "busy"} onClick={() => void send(canForce)}>
          {progress.kind === "busy" ? "Working…" : canForce ? "Do it anyway" : title(order)}
        </button>
      </div>
    </dialog>
  );
}

function title(order: Order): string {
  const name = order.worker.id || order.worker.address;
  if (order.action === "drain") return `Drain ${name}`;
  if (order.action === "undrain") return `Undrain ${name}`;
  return `Make ${name} ${roleName(order.role ?? "")}`;
}

function meaning(order: Order, name: string): string {
  if (order.action === "drain") {
    return `${name} takes no new requests. Those that do not finish in time move to other workers with their KV; none is lost.`;
  }
  if (order.action === "undrain") return `${name} takes requests again.`;
  return `${name} is drained, and then serves its new role with the same weights and cache until it is restarted.`;
}
