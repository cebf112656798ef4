"""Load generator for OpenAI-compatible servers: `baton bench`.

The life of a load:

1. `datasets` provide the requests: prompts, output lengths and, for traces, times.
2. `probe` reads the server's model name and sends one small request, to find a wrong name or key early.
3. `plan` builds each request's bytes before the clock starts.
4. `dispatch` sends each request at its time (open loop), or when an earlier one has ended (closed loop).
5. `connection` timestamps a response's bytes on arrival, and `answer` parses their events into the request's `record`.
6. `summary` computes statistics from the records; `terminal`, `load_report`, `page` and `profile` output them.
"""
