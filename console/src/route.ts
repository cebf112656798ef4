// Pages by the address's hash: `#workers`, and `#requests/ID?begun_at=TIME` for one request. Such addresses can be shared.

export const PAGES = ["overview", "workers", "requests", "planner", "playground"] as const;
const BEGUN_AT = "?begun_at=";
export type Page = (typeof PAGES)[number];

export interface Route {
  page: Page;
  requestId: string; // of the page "requests"; empty: all requests
  begunAt: string; // Unix time that chooses among requests with one id; empty: the last one
}

export function routeOf(hash: string): Route {
  const [name = "", ...rest] = hash.replace(/^#/, "").split("/");
  const page = PAGES.find((each) => each === name) ?? "overview";
  if (page !== "requests") return { page, requestId: "", begunAt: "" };
  const [id = "", time = ""] = rest.join("/").split(BEGUN_AT); // ids are encoded, so that no ? is part of one
  return { page, requestId: decoded(id), begunAt: /^[\d.]+$/.test(time) ? time : "" };
}

export function requestHref(id: string, begunAt?: number): string {
  return `#requests/${encodeURIComponent(id)}${begunAt == null ? "" : BEGUN_AT + begunAt}`;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand, with a lone percent sign
  }
}
