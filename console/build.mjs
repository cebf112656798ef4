// Builds the pages into router/console/built and router/api_docs/built, or into folders of these names below the given
// one. The names of their files have hashes of their contents.
import { build } from "esbuild";
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../router");

// Builds a page and its files, at the address `path` of the server. `sources`: by the names of the files.
async function buildPage({ directory, html, path, sources, licenses }) {
  const built = join(target, directory, "built");
  await rm(built, { recursive: true, force: true });
  await mkdir(join(built, "assets"), { recursive: true });
  const result = await build({
    absWorkingDir: here,
    entryPoints: sources,
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
  let page = await readFile(join(here, html), "utf8");
  for (const source of Object.values(sources)) page = page.replace(`{${source}}`, `${path}/assets/${names.get(source)}`);
  await writeFile(join(built, "index.html"), page);
  await writeFile(join(built, "assets/licenses.txt"), await licenses());
}

// Returns the text about a package that a script contains, with its files of that kind.
async function license(name, title, home, files) {
  const folder = join(here, "node_modules", name);
  const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
  const texts = await Promise.all(files.map((file) => readFile(join(folder, file), "utf8")));
  return `The page's script contains ${title} ${version} (${home}), under this license:\n\n${texts.join("\n\n")}`;
}

await buildPage({
  directory: "console",
  html: "src/index.html",
  path: "console",
  sources: { console: "src/main.tsx", style: "src/style.css", icon: "src/icon.svg" },
  licenses: () => license("preact", "Preact", "https://preactjs.com", ["LICENSE"]),
});
await buildPage({
  directory: "api_docs",
  html: "src/docs.html",
  path: "docs",
  sources: { docs: "src/docs.ts", docs_style: "src/docs.css" },
  licenses: () => license("swagger-ui-dist", "Swagger UI", "https://swagger.io/tools/swagger-ui", ["LICENSE", "NOTICE", "swagger-ui-es-bundle.js.LICENSE.txt"]),
});
