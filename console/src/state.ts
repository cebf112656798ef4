// The messages of /console/events, as router/console/snapshot.py defines them.

export interface Figures {
  completions_per_s: number;
  tokens_per_s: number;
  ttft_p50_s: number | null;
  ttft_p95_s: number | null;
  tpot_p50_s: number | null;
  tpot_p95_s: number | null;
  hit_rate: number | null;
  local: number;
  remote: number;
  on_target: number | null;
  errors: number;
}

export interface RequestRow {
  id: string;
  index: number;
  age_s: number;
  ttft_s: number | null;
  tokens: number;
  max_tokens: number;
  prompt_tokens: number;
  prefill: string;
  decode: string;
  attempts: number;
}

export type StageName = "queued" | "prefill" | "handover" | "decode";

export interface StageRow {
  stage: StageName;
  num: number;
  requests: RequestRow[];
}

export interface PlanRow {
  time_s: number;
  prefill_target: number;
  prefill_needed: number;
  decode_target: number;
  decode_needed: number;
  reason: string;
}

export interface RecentError {
  time_s: number;
  status: number;
  request_id: string;
  text: string;
  num: number;
}

export interface RecentRequest {
  id: string;
  model: string; // empty: the request named none that is served
  begun_at: number;
  duration_s: number;
  ttft_s: number | null;
  prompt_tokens: number | null;
  output_tokens: number | null;
  error: string; // empty: it did not fail
  client_gone: boolean; // the client disconnected or cancelled it
}

export interface ModelRow {
  name: string;
  ready: boolean;
  waiting: number;
  oldest_wait_s: number;
  ttft_target_s: number | null;
  tpot_target_s: number | null;
  total: Figures;
  series: Figures[];
  stages: StageRow[];
  errors: RecentError[];
  plans: PlanRow[];
  plan: PlanRow | null;
  adapters: AdapterRow[];
  num_adapters: number;
}

export interface AdapterRow {
  name: string;
  loaded: number;
  resident: number;
}

export interface ExpertRow {
  group: string; // its name; a model may have several groups
  rank: number;
  ranks: number;
  layer: number;
  experts: number[];
  num_experts: number; // also those that `experts` leaves out
  imbalance: number; // 0: not known yet
  rows: number;
}

export interface TierRow {
  name: string;
  num_bytes: number;
  capacity_bytes: number;
}

export type Role = "prefill" | "decode" | "both" | "";

export interface PoolRow {
  model: string;
  role: Role;
  workers: number;
  ready: number;
  draining: number;
  kv_used: number;
  running: number;
  waiting: number;
  generated_per_s: number;
  prefilled_per_s: number;
  tiers: TierRow[];
}

export interface WorkerRow {
  model: string;
  address: string;
  id: string;
  role: Role;
  state: string;
  error: string;
  kv_used: number;
  running: number;
  waiting: number;
  receiving: number;
  handovers: number;
  rates: { generated: number; prefilled: number };
  tiers: TierRow[];
  experts: ExpertRow | null;
}

export interface State {
  time_s: number;
  version: string;
  process: number | null;
  processes: number;
  policy: string;
  registry: string;
  registry_error: string;
  draining: boolean;
  span_s: number;
  models: ModelRow[];
  pools: PoolRow[];
  workers: WorkerRow[];
  num_workers: number;
  keeps_timelines: boolean;
  recent: RecentRequest[];
}
