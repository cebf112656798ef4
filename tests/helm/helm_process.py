"""Helm in a process of its own: one JSON line in for each action, one out.

Helm keeps what servers offer under the home directory that a process starts with; tests must neither fill nor read the
one of whoever runs them.
"""

import json
import sys

from helm_python import Config, HelmError


def main() -> None:
    """Does actions until there are no more. The first line is what connects."""
    with Config(**json.loads(sys.stdin.readline())) as connected:
        for line in sys.stdin:
            action, arguments, options = json.loads(line)
            try:
                answer = {"result": getattr(connected, action)(*arguments, **options)}
            except HelmError as error:
                answer = {"error": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
