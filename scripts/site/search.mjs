// The search of the built site, in its own code: node search.mjs SITE < queries
// Reads a JSON list of queries from standard input, and writes for each the list of its pages in the order in which a
// reader sees them, each with its best section.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import vm from "node:vm";

const site = process.argv[2];
const workers = join(site, "assets/javascripts/workers");
const [script] = readdirSync(workers).filter((name) => /^search\..*\.js$/.test(name));
const SETUP = 0, QUERY = 2;

const waiting = [];
let listener;
const scope = {
  console,
  addEventListener: (kind, found) => { listener = found; },
  postMessage: (message) => waiting.shift()(message.data),
};
scope.self = scope;
vm.runInNewContext(readFileSync(join(workers, script), "utf8"), scope);

const ask = (type, data) => new Promise((resolve) => { waiting.push(resolve); listener({ data: { type, data } }); });
const { config, docs } = JSON.parse(readFileSync(join(site, "search/search_index.json"), "utf8"));
await ask(SETUP, { config, docs, options: { suggest: true } });

const pages = ({ items }) => items.map((sections) => {
  const best = sections.reduce((one, other) => (other.score > one.score ? other : one));
  return { page: sections[0].location.split("#")[0], section: best.location, score: best.score };
});
const queries = JSON.parse(readFileSync(0, "utf8"));
const found = [];
for (const query of queries) found.push(pages(await ask(QUERY, query)));
process.stdout.write(JSON.stringify(found));
