// One streamed request of the playground.

import { errorText, serverEvents } from "./events";
import { keyHeaders } from "./key";

export type Mode = "chat" | "completions";

export interface Settings {
  temperature: string;
  top_p: string;
  top_k: string;
  max_tokens: string;
  seed: string;
  plan: "" | "local" | "remote";
  schema: string; // JSON Schema of the output; empty: none
}

export interface Prompt {
  mode: Mode;
  model: string;
  system: string;
  text: string;
}

export interface Outcome {
  text: string;
  reasoning: string;
  error: string;
  finish: string;
  ttft_s: number | null;
  total_s: number | null;
  numTokens: number | null; // as the server counts them; null until the end
  headers: [name: string, value: string][];
  running: boolean;
}

export const NOTHING: Outcome = {
  text: "",
  reasoning: "",
  error: "",
  finish: "",
  ttft_s: null,
  total_s: null,
  numTokens: null,
  headers: [],
  running: false,
};

interface Chunk {
  choices?: {
    text?: string;
    delta?: { content?: string | null; reasoning_content?: string | null; tool_calls?: unknown };
    finish_reason?: string | null;
  }[];
  usage?: { completion_tokens: number } | null;
  error?: { message: string };
}

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"] as const;
const SHOWN_HEADERS = /^(x-baton-|x-request-id$|x-ratelimit-)/;

// Returns the body, or throws an Error that says which setting is wrong.
export function requestBody(prompt: Prompt, settings: Settings): Record<string, unknown> {
  const body: Record<string, unknown> = { model: prompt.model, stream: true, stream_options: { include_usage: true } };
  if (prompt.mode === "chat") {
    const system = prompt.system.trim() ? [{ role: "system", content: prompt.system }] : [];
    body.messages = [...system, { role: "user", content: prompt.text }];
  } else {
    body.prompt = prompt.text;
  }
  for (const name of NUMBERS) {
    const text = settings[name].trim();
    if (!text) continue;
    const value = Number(text);
    if (!Number.isFinite(value)) throw new Error(`${name} must be a number`);
    body[name] = value;
  }
  if (settings.schema.trim()) body.response_format = { type: "json_schema", json_schema: { name: "output", schema: parsedSchema(settings.schema) } };
  return body;
}

function parsedSchema(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`the JSON Schema is not JSON: ${(error as Error).message}`);
  }
}

export async function complete(
  prompt: Prompt,
  settings: Settings,
  signal: AbortSignal,
  show: (outcome: Outcome) => void,
): Promise<void> {
  let outcome: Outcome = { ...NOTHING, running: true };
  const put = (change: Partial<Outcome>) => show((outcome = { ...outcome, ...change }));
  const begun = performance.now();
  const passed_s = () => (performance.now() - begun) / 1000;
  put({});
  try {
    const path = prompt.mode === "chat" ? "v1/chat/completions" : "v1/completions";
    const hints: Record<string, string> = settings.plan ? { "x-baton-plan": settings.plan } : {};
    const response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json", ...keyHeaders(), ...hints },
      body: JSON.stringify(requestBody(prompt, settings)),
      signal,
    });
    put({ headers: [...response.headers].filter(([name]) => SHOWN_HEADERS.test(name)) });
    if (!response.ok || !response.body) {
      put({ error: await errorText(response), running: false });
      return;
    }
    for await (const { data } of serverEvents(response.body)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data) as Chunk;
      if (chunk.error) put({ error: chunk.error.message });
      if (chunk.usage) put({ numTokens: chunk.usage.completion_tokens });
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      const text = choice.text ?? choice.delta?.content ?? "";
      const reasoning = choice.delta?.reasoning_content ?? "";
      if ((text || reasoning) && outcome.ttft_s == null) put({ ttft_s: passed_s() });
      put({
        text: outcome.text + text,
        reasoning: outcome.reasoning + reasoning,
        finish: choice.finish_reason ?? outcome.finish,
        total_s: passed_s(),
      });
    }
    put({ running: false, total_s: passed_s() });
  } catch (error) {
    const text = signal.aborted ? "stopped" : (error as Error).message;
    put({ error: text, running: false });
  }
}
