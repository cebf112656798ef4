// The head of the page: the model, the pages, the state of the connection.

import { useState } from "preact/hooks";
import type { Link } from "./feed";
import { storedKey, storeKey } from "./key";
import { Mark } from "./mark";
import { PAGES, type Page } from "./route";
import type { ModelRow, State } from "./state";
import { applyTheme, nextTheme, storedTheme } from "./theme";

export const TITLES: Record<Page, string> = {
  overview: "Overview",
  workers: "Workers",
  requests: "Requests",
  planner: "Planner",
  playground: "Playground",
};

interface HeadProps {
  page: Page;
  link: Link;
  state: State | null;
  model: ModelRow | undefined;
  setModelName: (name: string) => void;
  isPaused: boolean;
  setPaused: (isPaused: boolean) => void;
}

export function Head({ page, link, state, model, setModelName, isPaused, setPaused }: HeadProps) {
  return (
    <header class="top">
      <div class="brand">
        <Mark />
        <span class="brand-name">Baton</span>
        {state && state.models.length > 1 ? (
          <select aria-label="Model" value={model?.name} onChange={(event) => setModelName(event.currentTarget.value)}>
            {state.models.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        ) : (
          <span class="brand-model">{model?.name}</span>
        )}
      </div>
      <nav aria-label="Pages">
        {PAGES.map((each) => (
          <a key={each} href={`#${each}`} aria-current={each === page ? "page" : undefined}>
            {TITLES[each]}
          </a>
        ))}
      </nav>
      <div class="tools">
        <LinkLabel link={link} isPaused={isPaused} />
        <button type="button" class="small" aria-pressed={isPaused} onClick={() => setPaused(!isPaused)}>
          {isPaused ? "Resume" : "Pause"}
        </button>
        <ThemeButton />
        {storedKey() && (
          <button type="button" class="small" onClick={() => {
            storeKey("");
            location.reload();
          }}>
            Forget key
          </button>
        )}
      </div>
    </header>
  );
}

function LinkLabel({ link, isPaused }: { link: Link; isPaused: boolean }) {
  if (isPaused) return <span class="link">❚❚ paused</span>;
  if (link.kind === "live") return <span class="link link-live">● live</span>;
  if (link.kind === "lost")
    return (
      <span class="link link-lost" role="status" title={link.text}>
        ✕ reconnecting
      </span>
    );
  return <span class="link">… connecting</span>;
}

function ThemeButton() {
  const [theme, setTheme] = useState(storedTheme);
  return (
    <button
      type="button"
      class="small"
      onClick={() => {
        const next = nextTheme(theme);
        applyTheme(next);
        setTheme(next);
      }}
    >
      <span class="visually-hidden">Colours: </span>
      {theme === "system" ? "Auto" : theme === "light" ? "Light" : "Dark"}
    </button>
  );
}
