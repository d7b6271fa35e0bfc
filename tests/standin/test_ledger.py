"""The ledger has every billed call, even if its caller has left."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from urllib3.exceptions import ProtocolError

from pricekeeper.standin import BilledCall, Ledger, Running, TokenCounts, running
from standin.conftest import MakeClient
from standin.wire import CLAUDE, ask, directive, messages


def _hung_up(count: int) -> Any:
    return lambda entries: sum(entry.hung_up for entry in entries) == count


def test_the_sums_are_those_of_the_answers(standin: Running, bedrock: Any) -> None:
    used = []
    for count in (3, 50, 700):
        text = directive(input_tokens=count, output_tokens=count + 1, cache_read=count + 2)
        used.append(bedrock.converse(modelId=CLAUDE, messages=messages(text))["usage"])
        stream = bedrock.converse_stream(modelId=CLAUDE, messages=messages(text))["stream"]
        used.append(list(stream)[-1]["metadata"]["usage"])

    ledger = standin.ledger
    assert ledger.attempts == {"Converse": 3, "ConverseStream": 3}
    assert len(ledger.entries) == ledger.billed_calls == 6
    assert ledger.totals.input_tokens == sum(usage["inputTokens"] for usage in used) == 2 * 753
    assert ledger.totals.output_tokens == sum(usage["outputTokens"] for usage in used)
    assert ledger.totals.cache_read_tokens == sum(u["cacheReadInputTokens"] for u in used)
    assert not any(entry.hung_up for entry in ledger.entries)


def test_callers_at_the_same_time_are_billed_each(standin: Running, bedrock: Any) -> None:
    """A refused attempt has no entry."""

    def call(number: int) -> str:
        fate = {"fate": "ThrottlingException"} if number % 5 == 0 else {}
        text = directive(output_tokens=number, delay_ms=number % 3, **fate)
        try:
            reply = bedrock.converse(modelId=CLAUDE, messages=messages(text))
        except bedrock.exceptions.ThrottlingException:
            return ""
        assert reply["usage"]["outputTokens"] == number
        return str(reply["ResponseMetadata"]["RequestId"])

    with ThreadPoolExecutor(8) as pool:
        answered = {request_id for request_id in pool.map(call, range(1, 101)) if request_id}

    assert {entry.id for entry in standin.ledger.entries} == answered
    assert standin.ledger.totals.output_tokens == sum(n for n in range(1, 101) if n % 5)
    assert standin.ledger.attempts == {"Converse": 100}


def test_a_refusal_is_an_attempt_and_no_entry(standin: Running, bedrock: Any) -> None:
    text = directive(fate="ThrottlingException")
    with pytest.raises(bedrock.exceptions.ThrottlingException):
        bedrock.converse(modelId=CLAUDE, messages=messages(text))

    assert standin.ledger.attempts == {"Converse": 1}
    assert standin.ledger.entries == []


@pytest.mark.parametrize(("attempts", "script"), [(3, {"fate": "silent"}), (1, {"delay_ms": 200})])
def test_every_attempt_of_a_client_that_times_out_is_billed(
    standin: Running, make_client: MakeClient, attempts: int, script: dict[str, Any]
) -> None:
    hasty = make_client(attempts=attempts, read_timeout=0.05)
    with pytest.raises(ReadTimeoutError):
        hasty.converse(modelId=CLAUDE, messages=messages(directive(**script)))

    assert standin.ledger.wait_until(_hung_up(attempts))
    assert standin.ledger.billed_calls == attempts
    assert standin.ledger.totals.output_tokens == attempts * 64


def test_a_caller_with_a_long_prompt_is_seen_leaving(
    standin: Running, make_client: MakeClient
) -> None:
    """Even while the server does not read because much of a body waits."""
    hasty = make_client(read_timeout=0.05)
    text = "x" * 2_000_000 + directive(delay_ms=200)
    with pytest.raises(ReadTimeoutError):
        hasty.converse(modelId=CLAUDE, messages=messages(text))

    assert standin.ledger.wait_until(_hung_up(1), timeout_secs=3)


def test_a_stream_whose_reader_leaves_is_billed_in_full(standin: Running, bedrock: Any) -> None:
    text = directive(between_ms=5, events=100, output_tokens=1_000)
    stream = bedrock.converse_stream(modelId=CLAUDE, messages=messages(text))["stream"]
    next(iter(stream))
    stream.close()

    assert standin.ledger.wait_until(_hung_up(1))
    assert standin.ledger.totals.output_tokens == 1_000


def test_a_connection_that_closes_without_an_answer_was_billed(
    standin: Running, bedrock: Any
) -> None:
    text = directive(fate="hangs-up")
    with pytest.raises(ConnectionClosedError):
        bedrock.converse(modelId=CLAUDE, messages=messages(text))

    (entry,) = standin.ledger.entries
    assert not entry.hung_up  # the stand-in closed it


def test_a_stream_that_is_cut_was_billed(standin: Running, bedrock: Any) -> None:
    text = directive(fate="cut", output_tokens=77)
    stream = bedrock.converse_stream(modelId=CLAUDE, messages=messages(text))["stream"]
    with closing(stream), pytest.raises(ProtocolError):
        list(stream)

    assert standin.ledger.totals.output_tokens == 77


def test_a_proxy_that_waits_too_long_has_a_bill_behind_it(standin: Running) -> None:
    body = {"messages": messages(directive(fate="gateway-504"))}
    answer = ask(standin, "POST", f"/model/{CLAUDE}/converse", body)

    assert (answer.status, answer.headers["content-type"]) == (504, "text/html")
    assert standin.ledger.billed_calls == 1


def test_it_can_be_read_and_cleared_over_http(standin: Running, bedrock: Any) -> None:
    text = directive(cache_write_1h=5)
    bedrock.converse(modelId=CLAUDE, messages=messages(text), requestMetadata={"team": "a"})
    read = ask(standin, "GET", "/ledger").json

    (entry,) = standin.ledger.entries
    assert read["entries"][0] == {
        "id": entry.id,
        "operation": "Converse",
        "model_id": CLAUDE,
        "tokens": {
            "input_tokens": entry.tokens.input_tokens,
            "output_tokens": 64,
            "cache_read_tokens": 0,
            "cache_write_5m_tokens": 0,
            "cache_write_1h_tokens": 5,
        },
        "service_tier": "default",
        "latency": "standard",
        "request_metadata": {"team": "a"},
        "hung_up": False,
    }
    assert (read["attempts"], read["billed_calls"]) == ({"Converse": 1}, 1)
    assert ask(standin, "DELETE", "/ledger").status == 200
    assert ask(standin, "GET", "/ledger").json["attempts"] == {}
    assert ask(standin, "PUT", "/ledger").status == 405


def test_old_entries_are_forgotten_and_the_sums_are_not() -> None:
    ledger = Ledger(entries_max=2)
    for name in "abc":
        ledger.bill(
            BilledCall(
                name, "Converse", CLAUDE, TokenCounts(1, 2, 3, 4, 5), "default", "standard", {}
            )
        )
    ledger.note_hang_up("a")  # it was dropped

    assert [entry.id for entry in ledger.entries] == ["b", "c"]
    assert ledger.totals == TokenCounts(3, 6, 9, 12, 15)
    assert ledger.statement().entries_forgotten == 1


def test_a_stand_in_stops_while_calls_are_under_way() -> None:
    """Silent and slow calls do not delay the end."""
    with running() as standin:
        callers = [_start_call(standin, fate="silent"), _start_call(standin, delay_ms=600_000)]
        assert standin.ledger.wait_until(lambda entries: len(entries) == 2)

    for caller in callers:
        with closing(caller):
            assert caller.recv(1) == b""


def _start_call(standin: Running, **script: Any) -> socket.socket:
    body = json.dumps({"messages": messages(directive(**script))}).encode()
    caller = socket.create_connection(("127.0.0.1", urlsplit(standin.url).port or 0), timeout=20)
    head = f"POST /model/{CLAUDE}/converse HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}"
    caller.sendall(head.encode() + b"\r\n\r\n" + body)
    return caller
