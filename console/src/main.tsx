import { render } from "preact";
import { App } from "./app";
import { applyTheme, storedTheme } from "./theme";

applyTheme(storedTheme());
const root = document.getElementById("app");
if (root) render(<App />, root);
