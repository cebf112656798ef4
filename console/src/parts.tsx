// Small parts that several pages share.

import type { ComponentChildren } from "preact";
import { bytes, percent } from "./format";
import { requestHref } from "./route";
import type { Role, TierRow } from "./state";

const ROLE_NAMES: Record<Role, string> = { prefill: "prefill", decode: "decode", both: "colocated", "": "unknown" };
const STATE_NAMES: Record<string, [mark: string, text: string]> = {
  ready: ["●", "ready"],
  draining: ["◐", "draining"],
  drained: ["○", "drained"],
  connecting: ["…", "connecting"],
  lost: ["✕", "lost"],
  short_of_ranks: ["◔", "waits for ranks"],
};

export function roleName(role: Role): string {
  return ROLE_NAMES[role];
}

export function RoleLabel({ role }: { role: Role }) {
  return (
    <span class={`role role-${role || "none"}`}>
      <span class="swatch" aria-hidden="true" />
      {roleName(role)}
    </span>
  );
}

export function StateLabel({ state }: { state: string }) {
  const [mark, text] = STATE_NAMES[state] ?? ["?", state];
  return (
    <span class={`state state-${state}`}>
      <span aria-hidden="true">{mark}</span> {text}
    </span>
  );
}

export function Meter({ value, label }: { value: number; label: string }) {
  const share = Math.min(1, Math.max(0, value));
  return (
    <span class="meter">
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={`${label}: ${percent(value)}`}>
        <rect class="meter-track" width="100" height="6" />
        <rect class={share > 0.9 ? "meter-fill meter-full" : "meter-fill"} width={share * 100} height="6" />
      </svg>
      <span class="num">{percent(value)}</span>
    </span>
  );
}

export function Tiers({ tiers }: { tiers: TierRow[] }) {
  const known = tiers.filter((tier) => tier.num_bytes || tier.capacity_bytes);
  if (!known.length) return null;
  return (
    <span class="tiers">
      {known.map((tier) => (
        <span key={tier.name}>
          {tier.name} {bytes(tier.num_bytes)}
          {tier.capacity_bytes ? ` of ${bytes(tier.capacity_bytes)}` : ""}
        </span>
      ))}
    </span>
  );
}

export function Section(props: { title: string; note?: ComponentChildren; children: ComponentChildren; id?: string }) {
  const id = props.id ?? props.title.toLowerCase().replaceAll(" ", "-");
  return (
    <section aria-labelledby={id}>
      <header class="section-head">
        <h2 id={id}>{props.title}</h2>
        {props.note && <p class="note">{props.note}</p>}
      </header>
      {props.children}
    </section>
  );
}

// A table that scrolls sideways on its own when the window is narrow.
export function TableFrame({ label, children, compact }: { label: string; children: ComponentChildren; compact?: boolean }) {
  return (
    <div class={compact ? "table-frame compact" : "table-frame"} role="region" aria-label={`Table: ${label}`} tabIndex={0}>
      {children}
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Tile(props: { name: string; value: string; unit?: string; more?: string; alarm?: boolean }) {
  return (
    <div class={props.alarm ? "tile tile-alarm" : "tile"}>
      <dt>{props.name}</dt>
      <dd>
        <span class="tile-value num">{props.value}</span>
        {props.unit && <span class="tile-unit"> {props.unit}</span>}
        {props.more && <span class="tile-more num">{props.more}</span>}
      </dd>
    </div>
  );
}

// `begunAt`: Unix time, for a request that has ended; its id may have been used again.
export function RequestLink({ id, text, begunAt }: { id: string; text?: string; begunAt?: number }) {
  return (
    <a class="request-link" href={requestHref(id, begunAt)} title={`Timeline of ${id}`}>
      {text ?? <code>{id}</code>}
    </a>
  );
}
