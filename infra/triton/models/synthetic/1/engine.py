"""The synthetic engine's clock: every stream has a phase of its own, one thread serves whoever is due."""

import heapq
import itertools
import threading
import time
from dataclasses import dataclass, field

import triton_python_backend_utils as pb
from llmapi import reply
from llmapi.gauge import ActiveRequests
from llmapi.request import Ask
from script import Answer, Script, script_of

CANCEL_POLL_S = 0.5
"""How often each caller is asked whether it has gone: a message each. Who is in a hurry sends a stop."""
SHORTEST_SLEEP_S = 0.001
"""Streams that are due within this time are served in one go."""
NEVER = float("inf")


@dataclass
class Run:
    """One answer. `due` is when its next token comes, in seconds of the monotonic clock."""

    ask: Ask
    request: object
    sender: object
    answer: Answer
    period_s: float
    due: float
    times: reply.Times = field(default_factory=lambda: reply.Times(arrival_time_ns=time.monotonic_ns()))
    stopped: bool = False
    gone: bool = False
    over: bool = False


class Engine:
    """Open runs in a heap by the time at which they are due.

    A token is due at arrival + first_ms + k * period_ms, whatever happened to those before it: a late engine
    catches up, and says several tokens in one response, as real engines do.
    """

    def __init__(self, default: Script, context_words: int) -> None:
        self._default = default
        self._context_words = context_words
        self._active = ActiveRequests("synthetic")
        self._changed = threading.Condition()
        self._runs: dict[int, Run] = {}
        self._heap: list[tuple[float, int, Run]] = []
        self._keys = itertools.count()
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._loop, name="clock", daemon=True),
            threading.Thread(target=self._look_for_leavers, name="leavers", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def add(self, ask: Ask, request, sender) -> None:
        """Start a run.

        :raises ValueError: a script that makes no sense, or a prompt that does not fit the context.
        """
        words = len(ask.prompt.split())
        if words + ask.max_tokens > self._context_words:
            raise ValueError(
                f"the prompt has {words} words and the answer may have {ask.max_tokens}: "
                f"more than the context of {self._context_words}"
            )
        script = script_of(ask.prompt, self._default)
        answer = Answer(ask.prompt, script, ask.max_tokens)
        due = time.monotonic() + script.first_ms / 1e3
        run = Run(ask, request, sender, answer, script.period_ms / 1e3, due)
        with self._changed:
            self._runs[id(run)] = run
            self._active.show(len(self._runs))
            self._schedule(run, run.due)

    def stop(self, request_id: str) -> None:
        """Have the runs under an id end with what they have; nothing happens when there are none."""
        with self._changed:
            for run in self._runs.values():
                if run.ask.id == request_id:
                    run.stopped = True
                    self._schedule(run, time.monotonic())

    def close(self) -> None:
        with self._changed:
            self._closing.set()
            self._changed.notify()
        for thread in self._threads:
            thread.join(timeout=2)

    def _schedule(self, run: Run, at: float) -> None:
        heapq.heappush(self._heap, (at, next(self._keys), run))
        if self._heap[0][2] is run:
            self._changed.notify()

    def _loop(self) -> None:
        while not self._closing.is_set():
            with self._changed:
                while not self._heap and not self._closing.is_set():
                    self._changed.wait()
                if self._heap and (wait := self._heap[0][0] - time.monotonic()) > 0:
                    self._changed.wait(max(wait, SHORTEST_SLEEP_S))
                due = self._take_due()
            for run in due:
                self._serve(run)
            with self._changed:
                for run in due:
                    if run.over:
                        self._runs.pop(id(run), None)
                    elif run.due != NEVER:
                        heapq.heappush(self._heap, (run.due, next(self._keys), run))
                self._active.show(len(self._runs))

    def _take_due(self) -> list[Run]:
        now, due = time.monotonic(), []
        while self._heap and self._heap[0][0] <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due

    def _serve(self, run: Run) -> None:
        if run.over:  # a stop came while its token was due
            return
        try:
            self._advance(run)
        except Exception as error:
            pb.Logger.log_error(f"synthetic: a run failed: {type(error).__name__}: {error}")
            run.over = True
            reply.refuse(run.sender, RuntimeError(str(error)))

    def _advance(self, run: Run) -> None:
        """Say what is due, or end the run."""
        if run.gone or (run.stopped and not run.ask.streaming):
            run.over = True
            reply.cancelled(run.sender)
            return
        if run.stopped:
            self._send(run, "cancelled")
            return
        now = time.monotonic()
        said = False
        while run.due <= now and not run.answer.finish:
            if incident := run.answer.incident:
                if said and run.ask.streaming:
                    self._send(run)
                self._befall(run, incident)
                return
            run.answer.advance()
            run.due += run.period_s
            said = True
        if run.answer.finish:
            self._send(run, run.answer.finish)
        elif said and run.ask.streaming:
            self._send(run)

    def _befall(self, run: Run, incident: str) -> None:
        run.due = NEVER
        if incident == "silent":
            return
        run.over = True
        if incident == "die":
            run.sender.send(flags=reply.FINAL)
        else:
            reply.refuse(run.sender, RuntimeError("as the script says"))

    def _send(self, run: Run, finish: str | None = None) -> None:
        run.times.last_token_time_ns = time.monotonic_ns()
        run.times.first_token_time_ns = run.times.first_token_time_ns or run.times.last_token_time_ns
        run.times.first_scheduled_time_ns = run.times.first_scheduled_time_ns or run.times.arrival_time_ns
        run.over = finish is not None
        text = run.ask.prompt.encode() + run.answer.text if run.ask.echo else run.answer.text
        state = reply.Reply(text, finish or reply.UNFINISHED, times=run.times)
        reply.send(run.sender, run.ask.wants, state, final=run.over)

    def _look_for_leavers(self) -> None:
        """Ask every caller in turn whether it has gone: each question waits for the server, so not in the clock."""
        while not self._closing.wait(CANCEL_POLL_S):
            with self._changed:
                runs = list(self._runs.values())
            for run in runs:
                if not run.over and not run.gone and run.request.is_cancelled():
                    run.gone = True
                    with self._changed:
                        self._schedule(run, time.monotonic())
