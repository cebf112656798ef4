"""Load for any server that speaks OpenAI's HTTP API, and what it measures: `baton bench`.

The life of a load:

1. `datasets` say what is asked for: prompts, how many tokens of answer, and in a trace also when.
2. `first_contact` learns the server's model and asks it one small thing, to find a wrong name or key before the load.
3. `plan` makes each request's bytes, before the clock runs.
4. `dispatch` sends them: each at its time whatever the answers do (open loop), or one when another ended (closed loop).
5. `connection` stamps an answer's bytes as they come, `answer` reads their events into the request's `record`.
6. `summary` turns records into figures; `terminal`, `json_report`, `page` and `profile` show and keep them.
"""
