// Stream one chat completion that survives the loss of a router: node resumed-stream.ts http://router-0:8000 http://router-1:8000

import OpenAI from "openai";
import { makeResumingFetch } from "./resuming-fetch.ts";

const [url, ...routers] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, fetch: makeResumingFetch({ routers }) });
const stream = await client.chat.completions.create({
  model: (await client.models.list()).data[0].id,
  messages: [{ role: "user", content: "How do I read a file?" }],
  max_tokens: 200,
  stream: true,
});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? "");
process.stdout.write("\n");
