"""An attacker who has read the OpenAPI document calls every operation with valid and invalid input, alone and in sequences.

schemathesis generates the requests and sends them over HTTP to a real server. `Tally` counts the responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Phase
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.specs.openapi.checks import positive_data_acceptance

# The document cannot express which fields of a configuration exclude each other, so the server may refuse input that fits it.
EXCUSED = [positive_data_acceptance]
SEQUENCE = 20  # number of requests in a sequence; a request uses the responses to earlier ones
BATCH = 10  # number of sequences that share a seed
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")  # sends arbitrary bytes instead of an archive
schemathesis.serializer.alias("application/vnd.stablessm.records", "application/octet-stream")
SECONDS = 60.0  # time limit of a response: a busy machine may pause for longer than the default of ten seconds


def _repeats(case: schemathesis.Case, url: str) -> bool:
    """Whether a query parameter occurs several times. The last value then counts, which the document cannot express.

    A list of one value is sent like a single value, and some queries are sent as text that the case does not split.
    """
    names = [name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True)]
    return len(names) > len(set(names)) or any(isinstance(value, list) for value in (case.query or {}).values())


@dataclass
class Tally:
    """Numbers of requests by operation and by status, and every response that contradicts the document."""

    operations: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return sum(self.statuses.values())

    def judge(self, case: schemathesis.Case, response: schemathesis.Response, headers: dict[str, str]) -> None:
        self.operations[case.operation.label] += 1
        self.statuses[response.status_code] += 1
        try:
            case.validate_response(response, excluded_checks=EXCUSED, headers=headers)
        except BaseExceptionGroup as failures:
            for failure in failures.exceptions:
                if "Schema-violating request accepted" in str(failure) and _repeats(case, response.request.url):
                    continue
                answer, asked = response.content[:300], case.as_curl_command()  # a response may be binary
                text = f"{case.operation.label} -> {response.status_code}: {failure}: {answer!r} {asked}"
                self.problems[text] += 1

    def lines(self) -> Iterator[str]:
        """A Markdown table of requests and response statuses."""
        yield "| operation | requests |"
        yield "| --- | ---: |"
        yield from (f"| `{label}` | {count:,} |" for label, count in sorted(self.operations.items()))
        yield f"| all | {self.requests:,} |"
        yield ""
        yield "Statuses: " + ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))


def settings(examples: int, **more: Any) -> hypothesis.settings:
    return hypothesis.settings(
        derandomize=False,  # we choose the seeds
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        **more,
    )


def attack(url: str, headers: dict[str, str], requests: int, tally: Tally, *, seed: int = 0) -> None:
    """Send at least `requests` requests: half of them to one operation after another, half in sequences."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", headers=headers).exclude(path_regex="/stream$")
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:
        _attack_alone(operation, headers, requests // (2 * len(operations)) + 1, tally, seed)
    while tally.requests < requests:
        seed += 1
        _attack_in_sequences(schema, headers, tally, seed)


def _attack_alone(operation: Any, headers: dict[str, str], examples: int, tally: Tally, seed: int) -> None:
    @hypothesis.seed(seed)
    @settings(examples)
    @hypothesis.given(case=operation.as_strategy())
    def ask(case: schemathesis.Case) -> None:
        tally.judge(case, case.call(headers=headers, timeout=SECONDS), headers)

    ask()


def _attack_in_sequences(schema: Any, headers: dict[str, str], tally: Tally, seed: int) -> None:
    class Attacker(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case) -> dict[str, Any]:
            return {"headers": headers, "timeout": SECONDS}

        def validate_response(self, response: schemathesis.Response, case: schemathesis.Case, **_: Any) -> None:
            tally.judge(case, response, headers)

    hypothesis.seed(seed)(Attacker)
    # The service keeps state, so it may answer a repeated sequence differently. This only ends the batch.
    with suppress(FlakyStrategyDefinition):
        Attacker.run(settings=settings(BATCH, stateful_step_count=SEQUENCE))
