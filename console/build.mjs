// Builds the page into router/console/built. The names of its files have hashes of their contents.
import { build } from "esbuild";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const built = process.argv[2] ?? join(here, "../router/console/built");

await rm(built, { recursive: true, force: true });
await mkdir(join(built, "assets"), { recursive: true });
const result = await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx", style: "src/style.css", icon: "src/icon.svg" },
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  loader: { ".svg": "copy" },
  legalComments: "none",
  entryNames: "[name]-[hash]",
  outdir: join(built, "assets"),
  metafile: true,
});
const names = new Map(
  Object.entries(result.metafile.outputs).map(([path, { entryPoint }]) => [entryPoint, basename(path)]),
);
let page = await readFile(join(here, "src/index.html"), "utf8");
for (const source of ["src/main.tsx", "src/style.css", "src/icon.svg"]) {
  page = page.replace(`{${source}}`, `console/assets/${names.get(source)}`);
}
await writeFile(join(built, "index.html"), page);
const license = await readFile(join(here, "node_modules/preact/LICENSE"), "utf8");
const { version } = JSON.parse(await readFile(join(here, "node_modules/preact/package.json"), "utf8"));
await writeFile(
  join(built, "assets/licenses.txt"),
  `The console's script contains Preact ${version} (https://preactjs.com), under this license:\n\n${license}`,
);
