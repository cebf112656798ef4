// The page: its head, its sections by the address's hash, and the form for the key.

import { useEffect, useRef, useState } from "preact/hooks";
import { follow, type Link } from "./feed";
import { storedKey, storeKey } from "./key";
import { Overview, perProcess } from "./overview";
import { Empty, Section } from "./parts";
import { Planner } from "./planner";
import { firstDraft, Playground } from "./playground";
import { RequestLanes } from "./relay";
import type { ModelRow, State } from "./state";
import { applyTheme, nextTheme, storedTheme } from "./theme";
import { Workers } from "./workers";

const PAGES = ["overview", "workers", "requests", "planner", "playground"] as const;
type Page = (typeof PAGES)[number];
const TITLES: Record<Page, string> = {
  overview: "Overview",
  workers: "Workers",
  requests: "Requests",
  planner: "Planner",
  playground: "Playground",
};

function pageOfHash(): Page {
  const name = location.hash.slice(1);
  return PAGES.find((page) => page === name) ?? "overview";
}

export function App() {
  const [page, setPage] = useState<Page>(pageOfHash);
  const [link, setLink] = useState<Link>({ kind: "connecting" });
  const [state, setState] = useState<State | null>(null);
  const [canControl, setCanControl] = useState(false);
  const [isPaused, setPaused] = useState(false);
  const [modelName, setModelName] = useState("");
  const [attempt, setAttempt] = useState(0);
  const draft = useState(firstDraft);
  const paused = useRef(false);
  paused.current = isPaused;
  useEffect(() => {
    const change = () => setPage(pageOfHash());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  useEffect(
    () =>
      follow({
        link: setLink,
        rights: setCanControl,
        state: (each) => {
          if (!paused.current) setState(each);
        },
      }),
    [attempt],
  );
  useEffect(() => {
    document.title = `${TITLES[page]} · Baton console`;
  }, [page]);
  const model = state?.models.find((each) => each.name === modelName) ?? state?.models[0];
  if (link.kind === "key") {
    return (
      <KeyForm
        text={link.text}
        onKey={(key) => {
          storeKey(key);
          setLink({ kind: "connecting" });
          setAttempt(attempt + 1);
        }}
      />
    );
  }
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>
        Skip to the content
      </a>
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
      <main id="main" tabIndex={-1}>
        <h1 class="visually-hidden">{TITLES[page]}</h1>
        {state && <Notices state={state} model={model} />}
        {state && model ? (
          <>
            {page === "overview" && <Overview state={state} model={model} />}
            {page === "workers" && <Workers state={state} canControl={canControl} />}
            {page === "requests" && (
              <Section title="Live requests" note={perProcess(state)}>
                <RequestLanes model={model} />
              </Section>
            )}
            {page === "planner" && <Planner model={model} />}
            <div hidden={page !== "playground"}>
              <Playground models={state.models.map(({ name }) => name)} model={model.name} draft={draft} />
            </div>
          </>
        ) : (
          <Empty>{link.kind === "lost" ? link.text : "Connecting…"}</Empty>
        )}
      </main>
      <footer class="foot">
        {state && (
          <>
            <span>Baton {state.version}</span>
            <span>policy {state.policy}</span>
            <span>registry {state.registry}</span>
            {!storedKey() && <a href="docs">API</a>} {/* that page has scripts of another host, which could read the key */}
            {!storedKey() && <a href="metrics">Metrics</a>}
            <a href="console/assets/licenses.txt">Licences</a>
          </>
        )}
      </footer>
    </>
  );
}

function Notices({ state, model }: { state: State; model: ModelRow | undefined }) {
  const texts = [
    state.draining && "This router is shutting down: it takes no new requests.",
    state.registry_error && `The registry cannot be read: ${state.registry_error}`,
    model && !model.ready && !state.draining && `No request to ${model.name} would be served now.`,
  ].filter(Boolean);
  return texts.length ? (
    <div role="status" class="notices">
      {texts.map((text) => (
        <p key={String(text)} class="notice">
          <span aria-hidden="true">▲</span> {text}
        </p>
      ))}
    </div>
  ) : null;
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

function KeyForm({ text, onKey }: { text: string; onKey: (key: string) => void }) {
  const [key, setKey] = useState("");
  return (
    <main class="key-page">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (key.trim()) onKey(key.trim());
        }}
      >
        <h1>
          <Mark /> Baton console
        </h1>
        <label>
          Admin key
          <input type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
        </label>
        {storedKey() && (
          <p class="error" role="alert">
            {text}
          </p>
        )}
        <button type="submit" class="primary" disabled={!key.trim()}>
          Open
        </button>
        <p class="note">
          A key of <code>--admin-api-key</code>, or one with <code>admin: true</code> in the file of API keys. It is kept until this tab is closed.
        </p>
      </form>
    </main>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <g transform="rotate(-45 16 16)">
        <rect class="mark-prefill" x="1" y="12" width="13" height="8" rx="4" />
        <rect class="mark-decode" x="18" y="12" width="13" height="8" rx="4" />
        <rect class="mark-handover" x="11.5" y="12" width="9" height="8" />
      </g>
    </svg>
  );
}
