// The form for the admin key.

import { useState } from "preact/hooks";
import { storedKey } from "./key";
import { Mark } from "./mark";

export function KeyForm({ text, onKey }: { text: string; onKey: (key: string) => void }) {
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
