// Pages by the address's hash: `#workers`, and `#requests/ID` for one request. Such addresses can be shared.

export const PAGES = ["overview", "workers", "requests", "planner", "playground"] as const;
export type Page = (typeof PAGES)[number];

export interface Route {
  page: Page;
  requestId: string; // of the page "requests"; empty: all requests
}

export function routeOf(hash: string): Route {
  const [name = "", ...rest] = hash.replace(/^#/, "").split("/");
  const page = PAGES.find((each) => each === name) ?? "overview";
  return { page, requestId: page === "requests" ? decoded(rest.join("/")) : "" };
}

export function requestHref(id: string): string {
  return `#requests/${encodeURIComponent(id)}`;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // typed by hand, with a lone percent sign
  }
}
