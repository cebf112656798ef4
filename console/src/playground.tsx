// Playground: one prompt, one or two settings side by side, streamed.

import { useRef, useState } from "preact/hooks";
import { complete, NOTHING, type Mode, type Outcome, type Prompt, type Settings } from "./completion";
import { count, seconds } from "./format";
import { RequestLink, Section } from "./parts";

const FIRST: Settings = { temperature: "0.7", top_p: "", top_k: "", max_tokens: "128", seed: "", plan: "", schema: "" };
const SECOND: Settings = { ...FIRST, temperature: "0" };
const FIELDS: [name: keyof Settings, label: string, placeholder: string][] = [
  ["temperature", "Temperature", "1"],
  ["top_p", "Top p", "1"],
  ["top_k", "Top k", "off"],
  ["max_tokens", "Max tokens", "model's"],
  ["seed", "Seed", "random"],
];

interface Draft {
  prompt: Prompt;
  settings: [Settings, Settings];
  isPair: boolean;
}

// Kept while another page is shown.
export type PlaygroundState = [Draft, (draft: Draft) => void];

export function firstDraft(): Draft {
  return {
    prompt: { mode: "chat", model: "", system: "", text: "What does a file do?" },
    settings: [FIRST, SECOND],
    isPair: false,
  };
}

export function Playground({ models, model, draft: [draft, setDraft] }: { models: string[]; model: string; draft: PlaygroundState }) {
  const [outcomes, setOutcomes] = useState<[Outcome, Outcome]>([NOTHING, NOTHING]);
  const abort = useRef<AbortController | null>(null);
  const prompt = { ...draft.prompt, model: models.includes(draft.prompt.model) ? draft.prompt.model : model };
  const setPrompt = (change: Partial<Prompt>) => setDraft({ ...draft, prompt: { ...prompt, ...change } });
  const setSettings = (place: 0 | 1, change: Partial<Settings>) => {
    const settings: [Settings, Settings] = [...draft.settings];
    settings[place] = { ...settings[place], ...change };
    setDraft({ ...draft, settings });
  };
  const running = outcomes.some((each) => each.running);
  const send = () => {
    const controller = (abort.current = new AbortController());
    const places: (0 | 1)[] = draft.isPair ? [0, 1] : [0];
    for (const place of places) {
      void complete(prompt, draft.settings[place], controller.signal, (outcome) =>
        setOutcomes((before) => (place === 0 ? [outcome, before[1]] : [before[0], outcome])),
      );
    }
  };
  return (
    <Section title="Playground" note="Requests are ordinary requests to this server, and count in its figures.">
      <form
        class="playground"
        onSubmit={(event) => {
          event.preventDefault();
          if (!running) send();
        }}
      >
        <PromptFields prompt={prompt} models={models} setPrompt={setPrompt} />
        <div class={draft.isPair ? "pair" : "pair pair-single"}>
          <SettingsFields name={draft.isPair ? "Settings A" : "Settings"} settings={draft.settings[0]} change={(each) => setSettings(0, each)} />
          {draft.isPair && <SettingsFields name="Settings B" settings={draft.settings[1]} change={(each) => setSettings(1, each)} />}
        </div>
        <div class="send-row">
          <button type="submit" class="primary" disabled={running || !prompt.text}>
            Send
          </button>
          <button type="button" disabled={!running} onClick={() => abort.current?.abort()}>
            Stop
          </button>
          <label class="check">
            <input type="checkbox" checked={draft.isPair} onChange={(event) => setDraft({ ...draft, isPair: event.currentTarget.checked })} />
            Compare two settings
          </label>
        </div>
      </form>
      <div class={draft.isPair ? "pair" : "pair pair-single"}>
        <OutcomeView name={draft.isPair ? "Output A" : "Output"} outcome={outcomes[0]} />
        {draft.isPair && <OutcomeView name="Output B" outcome={outcomes[1]} />}
      </div>
    </Section>
  );
}

function PromptFields({ prompt, models, setPrompt }: { prompt: Prompt; models: string[]; setPrompt: (change: Partial<Prompt>) => void }) {
  return (
    <div class="prompt-fields">
      <div class="field-row">
        <label>
          API
          <select value={prompt.mode} onChange={(event) => setPrompt({ mode: event.currentTarget.value as Mode })}>
            <option value="chat">chat completions</option>
            <option value="completions">completions</option>
          </select>
        </label>
        <label>
          Model
          <select value={prompt.model} onChange={(event) => setPrompt({ model: event.currentTarget.value })}>
            {models.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      </div>
      {prompt.mode === "chat" && (
        <label>
          System message
          <textarea rows={1} value={prompt.system} placeholder="none" onInput={(event) => setPrompt({ system: event.currentTarget.value })} />
        </label>
      )}
      <label>
        {prompt.mode === "chat" ? "Message" : "Prompt"}
        <textarea rows={3} value={prompt.text} onInput={(event) => setPrompt({ text: event.currentTarget.value })} />
      </label>
    </div>
  );
}

function SettingsFields({ name, settings, change }: { name: string; settings: Settings; change: (each: Partial<Settings>) => void }) {
  return (
    <fieldset>
      <legend>{name}</legend>
      <div class="settings-grid">
        {FIELDS.map(([field, label, placeholder]) => (
          <label key={field}>
            {label}
            <input inputMode="decimal" value={settings[field]} placeholder={placeholder} onInput={(event) => change({ [field]: event.currentTarget.value })} />
          </label>
        ))}
        <label>
          Plan
          <select value={settings.plan} onChange={(event) => change({ plan: event.currentTarget.value as Settings["plan"] })}>
            <option value="">router's choice</option>
            <option value="local">local</option>
            <option value="remote">remote</option>
          </select>
        </label>
      </div>
      <details open={Boolean(settings.schema)}>
        <summary>JSON Schema of the output</summary>
        <textarea
          rows={5}
          class="code"
          aria-label={`JSON Schema, ${name}`}
          spellcheck={false}
          value={settings.schema}
          placeholder='{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
          onInput={(event) => change({ schema: event.currentTarget.value })}
        />
      </details>
    </fieldset>
  );
}

function OutcomeView({ name, outcome }: { name: string; outcome: Outcome }) {
  const decode_s = outcome.total_s != null && outcome.ttft_s != null ? outcome.total_s - outcome.ttft_s : null;
  const tpot_s = decode_s != null && outcome.numTokens != null && outcome.numTokens > 1 ? decode_s / (outcome.numTokens - 1) : null;
  const id = outcome.headers.find(([header]) => header === "x-request-id")?.[1];
  return (
    <section class="outcome-view" aria-label={name} aria-busy={outcome.running}>
      <header class="outcome-head">
        <h3>{name}</h3>
        <span class="num outcome-figures">
          <span>TTFT {seconds(outcome.ttft_s)}</span>
          <span>TPOT {seconds(tpot_s)}</span>
          <span>total {seconds(outcome.total_s)}</span>
          <span>{count(outcome.numTokens)} tokens</span>
          <span>{outcome.running ? "running" : outcome.finish || "–"}</span>
          {id && <RequestLink id={id} text="Timeline" />}
        </span>
      </header>
      {outcome.reasoning && <pre class="output reasoning">{outcome.reasoning}</pre>}
      <pre class="output" tabIndex={0} aria-label={`Text of ${name}`}>
        {outcome.text || (outcome.running ? "" : "No output yet.")}
      </pre>
      {outcome.error && (
        <p class="error" role="alert">
          {outcome.error}
        </p>
      )}
      {outcome.headers.length > 0 && (
        <dl class="headers">
          {outcome.headers.map(([header, value]) => (
            <div key={header}>
              <dt>
                <code>{header}</code>
              </dt>
              <dd>
                <code>{value || "(empty)"}</code>
              </dd>
            </div>
          ))}
        </dl>
      )}
    </section>
  );
}
