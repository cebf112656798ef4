// The page: its head, and its pages by the address's hash.

import { useEffect, useRef, useState } from "preact/hooks";
import { follow, type Link } from "./feed";
import { Head, TITLES } from "./head";
import { storedKey, storeKey } from "./key";
import { KeyForm } from "./keyform";
import { Overview } from "./overview";
import { Empty } from "./parts";
import { Planner } from "./planner";
import { firstDraft, Playground } from "./playground";
import { RequestPage } from "./request";
import { Requests } from "./requests";
import { routeOf } from "./route";
import type { ModelRow, State } from "./state";
import { Workers } from "./workers";

export function App() {
  const [{ page, requestId, begunAt }, setRoute] = useState(() => routeOf(location.hash));
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
    const change = () => setRoute(routeOf(location.hash));
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
  const title = requestId ? `Request ${requestId}` : TITLES[page];
  useEffect(() => {
    document.title = `${title} · Baton console`;
  }, [title]);
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
      <Head
        page={page}
        link={link}
        state={state}
        model={model}
        setModelName={setModelName}
        isPaused={isPaused}
        setPaused={setPaused}
      />
      <main id="main" tabIndex={-1}>
        <h1 class="visually-hidden">{title}</h1>
        {state && <Notices state={state} model={model} />}
        {state && model ? (
          <>
            {page === "overview" && <Overview state={state} model={model} />}
            {page === "workers" && <Workers state={state} model={model} canControl={canControl} />}
            {page === "requests" && !requestId && <Requests state={state} model={model} />}
            {requestId && <RequestPage key={`${requestId} ${begunAt}`} id={requestId} begunAt={begunAt} state={state} isPaused={isPaused} />}
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
            <a href="docs">API</a>
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
