// A fetch for OpenAI's client whose completions survive the loss of a Baton router:
//
//     import OpenAI from "openai";
//     import { makeResumingFetch } from "./resuming-fetch.ts";
//
//     const fetch = makeResumingFetch({ routers: ["http://router-1:8000"] });
//     const client = new OpenAI({ baseURL: "http://router-0:8000/v1", apiKey: "none", fetch });
//
// It is the counterpart of Python's baton.client; docs/clients.md describes its guarantees. It runs in browsers, Node.js 20,
// Deno and Bun without other packages. Tested with Node.js 24 and TypeScript 7 (tests/unit/client/test_resuming_fetch.py).

export interface ResumingFetchOptions {
  /** Base URLs of further routers of the same cluster, such as "http://router-1:8000". */
  routers?: string[];
  /** How long a request is retried without a new token. Default: 60,000. */
  maxOutageMs?: number;
  /** A router that sends nothing on a stream for this long counts as lost. Default: 5,000. */
  silenceMs?: number;
  /** The underlying fetch. */
  fetch?: typeof fetch;
}

const PATH = /\/v1\/(chat\/)?completions$/;
const END_OF_EVENT = /\r\n\r\n|\n\n/;
const FINISH = /"finish_reason":\s*"/; // within a string, the quotes would be escaped
const TAKEN_OVER = /"code":\s*409\b/; // in an error: an earlier attempt arrived late at another router
const LONGEST_DELAY_MS = 5_000;

export function makeResumingFetch(options: ResumingFetchOptions = {}): typeof fetch {
  const inner = options.fetch ?? fetch;
  return async (input, init) => {
    const url = new URL(input instanceof Request ? input.url : input);
    if (init?.method?.toUpperCase() !== "POST" || !PATH.test(url.pathname) || typeof init.body !== "string") {
      return inner(input, init);
    }
    const resuming = new Resuming(url, init, init.body, options, inner);
    while (true) {
      const response = await resuming.open();
      if (!isResumable(response)) return response;
      if (resuming.isStreamed) return new Response(resuming.body(response), response);
      try {
        return new Response(await response.arrayBuffer(), response);
      } catch (error) {
        await resuming.lose(error);
      }
    }
  };
}

export const resumingFetch = makeResumingFetch();

function isResumable(response: Response): boolean {
  return response.status === 200 && response.headers.has("x-baton-resumable");
}

/** The state of one request over all its attempts. */
class Resuming {
  readonly isStreamed: boolean;
  private readonly url: URL;
  private readonly init: RequestInit;
  private readonly text: string; // the body
  private readonly inner: typeof fetch;
  private readonly id: string;
  private readonly origins: string[];
  private readonly maxOutageMs: number;
  private readonly silenceMs: number;
  private position = "0"; // the id of the last event that the client has
  private hasBegun = false; // the client has the response's head
  private isOver = false; // the client has the whole response
  private finished = new Set<number>(); // choices whose finish reason the client has
  private numAttempts = 0;
  private numLosses = 0; // since the last new token
  private outageSince = 0;
  private firstError: unknown;
  private attempt = new AbortController();

  constructor(url: URL, init: RequestInit, text: string, options: ResumingFetchOptions, inner: typeof fetch) {
    this.url = url;
    this.init = init;
    this.text = text;
    this.inner = inner;
    this.isStreamed = JSON.parse(text).stream === true;
    this.id = new Headers(init.headers).get("x-request-id") ?? crypto.randomUUID().replaceAll("-", "");
    this.origins = [...new Set([url.origin, ...(options.routers ?? []).map((each) => new URL(each).origin)])];
    this.maxOutageMs = options.maxOutageMs ?? 60_000;
    this.silenceMs = options.silenceMs ?? 5_000;
  }

  /** A response that is passed to the client. */
  async open(): Promise<Response> {
    while (true) {
      let response: Response;
      try {
        response = await this.unlessSilent(this.send());
      } catch (error) {
        await this.lose(error);
        continue;
      }
      // In the middle of a stream, a router that cannot resume would begin from the first token.
      if (response.status === 200 && (isResumable(response) || !this.hasBegun)) {
        this.hasBegun ||= this.isStreamed && isResumable(response);
        return response;
      }
      const text =
        response.status === 200
          ? "the router cannot resume"
          : await this.unlessSilent(response.clone().text()).catch((error) => `${error}`);
      const waitMs = response.status === 429 ? 1000 * Number(response.headers.get("retry-after") ?? 1) : 0;
      const isTemporary =
        [200, 502, 503].includes(response.status) ||
        (response.status === 504 && response.headers.get("x-request-id") !== this.id) ||
        (this.numAttempts > 1 && (response.status === 429 || (response.status === 409 && TAKEN_OVER.test(text))));
      const hasTime = this.hasTime(waitMs);
      if (!this.hasBegun && !(isTemporary && hasTime)) return response;
      const error = new Error(`the stream was not resumed: status ${response.status}: ${text.slice(0, 500)}`);
      if (!isTemporary) throw error;
      await this.lose(error, waitMs);
    }
  }

  /** The client's stream: whole events of all attempts. */
  body(response: Response): ReadableStream<Uint8Array> {
    const events = this.events(response);
    return new ReadableStream({
      async pull(controller) {
        const { done, value } = await events.next();
        if (done) controller.close();
        else controller.enqueue(value);
      },
      cancel: async () => {
        this.isOver = true;
        this.attempt.abort();
      },
    });
  }

  /** Wait before the next attempt. Throws if there is none. */
  async lose(error: unknown, waitMs = 0): Promise<void> {
    this.attempt.abort();
    if (this.isOver || this.init.signal?.aborted) throw error;
    if (this.numLosses === 0) this.outageSince = Date.now();
    this.firstError ??= error;
    const round = Math.min(30, Math.floor(this.numLosses++ / this.origins.length));
    if (!this.hasTime(waitMs)) {
      throw new Error(`given up after ${this.numLosses} losses, the latest: ${error}`, { cause: this.firstError });
    }
    await sleep(waitMs + Math.random() * Math.min(LONGEST_DELAY_MS, 200 * 2 ** round));
    if (this.isOver) throw error; // the client has disconnected
  }

  private send(): Promise<Response> {
    const headers = new Headers(this.init.headers);
    headers.set("x-request-id", this.id);
    headers.set("x-baton-resumable", "true");
    if (this.numAttempts > 0) headers.set("x-baton-resume", `${this.id}; tokens=${this.position}`);
    const origin = this.origins[this.numAttempts++ % this.origins.length];
    this.attempt = new AbortController();
    const signals = [this.attempt.signal, ...(this.init.signal ? [this.init.signal] : [])];
    const target = origin + this.url.pathname + this.url.search;
    return this.inner(target, { ...this.init, body: this.text, headers, signal: AbortSignal.any(signals) });
  }

  private async *events(first: Response): AsyncGenerator<Uint8Array> {
    let response = first;
    while (true) {
      try {
        yield* this.attemptEvents(response);
        return;
      } catch (error) {
        if (this.isOver) return;
        await this.lose(error);
      }
      response = await this.open();
    }
  }

  private async *attemptEvents(response: Response): AsyncGenerator<Uint8Array> {
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const encoder = new TextEncoder();
    let buffer = "";
    let held: SentEvent[] = []; // since the position, which the next attempt repeats
    while (true) {
      const { done, value } = await this.unlessSilent(reader.read());
      if (done && this.isOver) return;
      if (done) throw new Error("the router closed the stream before its end");
      buffer += value;
      for (let end = END_OF_EVENT.exec(buffer); end !== null; end = END_OF_EVENT.exec(buffer)) {
        const event = new SentEvent(buffer.slice(0, end.index + end[0].length));
        buffer = buffer.slice(event.length);
        if (this.isOver || event.text.trim() === "") continue;
        if (event.error && this.isLeft(event.error)) throw new Error(event.error.message);
        const finished = event.finishedChoices();
        if (event.id === undefined && finished.length && finished.every((index) => this.finished.has(index))) continue;
        held.push(event);
        this.isOver = event.error !== undefined || event.data === "[DONE]";
        if (event.id === undefined && !this.isOver) continue;
        this.position = event.id ?? this.position;
        this.numLosses = 0;
        this.firstError = undefined;
        held.flatMap((each) => each.finishedChoices()).forEach((index) => this.finished.add(index));
        yield encoder.encode(held.map((each) => each.text).join(""));
        held = [];
      }
    }
  }

  /** Whether an error in the stream means that the router ends, or in an outage one that another attempt may avoid. */
  private isLeft(error: { code?: unknown }): boolean {
    if (error.code === "router_draining" || (error.code === 409 && this.numAttempts > 1)) return true;
    return this.numLosses > 0 && [429, 503, "rate_limit_exceeded"].includes(error.code as string);
  }

  private hasTime(waitMs: number): boolean {
    return this.numLosses === 0 || Date.now() + waitMs <= this.outageSince + this.maxOutageMs;
  }

  /** The promise's value, unless a stream is silent for too long. */
  private async unlessSilent<T>(promise: Promise<T>): Promise<T> {
    if (!this.isStreamed) return promise;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const silence = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`the router sent nothing for ${this.silenceMs} ms`)), this.silenceMs);
    });
    try {
      return await Promise.race([promise, silence]);
    } finally {
      clearTimeout(timer);
    }
  }
}

/** One event, without its id and without comments. */
class SentEvent {
  readonly text: string;
  readonly id?: string;
  readonly data?: string;
  readonly error?: { message?: string; code?: unknown };
  readonly length: number;

  constructor(raw: string) {
    this.length = raw.length;
    const lines = raw.split(/(?<=\n)/);
    this.id = value(lines, "id:");
    this.data = value(lines, "data:");
    this.text = lines.filter((line) => !line.startsWith("id:") && !line.startsWith(":")).join("");
    if (this.data?.startsWith('{"error"')) this.error = JSON.parse(this.data).error;
  }

  finishedChoices(): number[] {
    if (!this.data || !FINISH.test(this.data)) return [];
    const choices: { index: number; finish_reason: string | null }[] = JSON.parse(this.data).choices;
    return choices.filter((choice) => choice.finish_reason !== null).map((choice) => choice.index);
  }
}

function value(lines: string[], name: string): string | undefined {
  return lines.find((line) => line.startsWith(name))?.slice(name.length).trim();
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
