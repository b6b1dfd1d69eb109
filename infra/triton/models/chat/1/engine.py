"""The in-flight batch: a thread that steps OpenVINO GenAI's ContinuousBatchingPipeline while runs are open."""

import threading
import time
from dataclasses import dataclass

import openvino_genai as genai
import triton_python_backend_utils as pb
from answer import Answer
from generation import config_of
from llmapi import reply
from llmapi.gauge import ActiveRequests
from llmapi.request import Ask

CANCEL_POLL_S = 0.1
"""How often callers are asked whether they have gone; asking costs a message to the server."""


@dataclass
class Run:
    """One answer in the making. `stopped` and `gone` are ends asked from outside, acted on before the next step."""

    ask: Ask
    request: object
    sender: object
    handle: object
    answer: Answer
    times: reply.Times
    logprob: float = 0.0
    finish: str = reply.UNFINISHED
    stopped: bool = False
    gone: bool = False


class Engine:
    """The language model and its open runs.

    `add` and `stop` are called from Triton's thread, everything else happens in the engine's own. An exception
    there would end it for all, silently: what goes wrong with a run is answered to its caller, what goes wrong
    with a step to all callers.
    """

    def __init__(self, gguf: str, context_tokens: int, cache_gb: int, prefill_tokens: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = prefill_tokens
        scheduler.cache_size = cache_gb
        self._pipe = genai.ContinuousBatchingPipeline(gguf, scheduler, "CPU")
        self._tokenizer = self._pipe.get_tokenizer()
        self._eos = self._pipe.get_config().eos_token_id
        self._context_tokens = context_tokens
        self._active = ActiveRequests("chat")
        self._changed = threading.Condition()
        self._runs: dict[int, Run] = {}
        self._last_key = 0
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    def add(self, ask: Ask, request, sender) -> None:
        """Start a run.

        :raises ValueError: the prompt and its answer don't fit the context, or a parameter makes no sense.
        """
        times = reply.Times(arrival_time_ns=time.monotonic_ns())
        config = config_of(ask, self._eos)
        answer = Answer(self._tokenizer.decode, ask.stops)
        ids = self._tokenizer.encode(ask.prompt).input_ids
        # The pipeline itself runs over the context without a word.
        if ids.shape[1] + ask.max_tokens > self._context_tokens:
            raise ValueError(
                f"the prompt has {ids.shape[1]} tokens and the answer may have {ask.max_tokens}: "
                f"more than the context of {self._context_tokens}"
            )
        with self._changed:
            self._last_key += 1
            handle = self._pipe.add_request(self._last_key, ids, config)
            self._runs[self._last_key] = Run(ask, request, sender, handle, answer, times)
            self._active.show(len(self._runs))
            self._changed.notify()

    def stop(self, request_id: str) -> None:
        """Have the runs under an id end with what they have; nothing happens when there are none."""
        with self._changed:
            for run in self._runs.values():
                run.stopped |= run.ask.id == request_id

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout=5)

    def _loop(self) -> None:
        polled = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._runs or self._closing)
                if self._closing:
                    return
                runs = list(self._runs.items())
            now = time.monotonic()
            if now - polled >= CANCEL_POLL_S:
                polled = now
                for _, run in runs:
                    run.gone |= run.request.is_cancelled()
            failure = self._step([run for _, run in runs])
            over = [key for key, run in runs if self._settle(run, failure)]
            with self._changed:
                for key in over:
                    del self._runs[key]
                self._active.show(len(self._runs))

    def _step(self, runs: list[Run]) -> Exception | None:
        """One token for every run (or a piece of a prompt); what went wrong, if it did."""
        for run in runs:
            if run.stopped or run.gone:
                run.handle.cancel()  # takes effect within the step
            run.times.first_scheduled_time_ns = run.times.first_scheduled_time_ns or time.monotonic_ns()
        try:
            self._pipe.step()
        except Exception as error:
            pb.Logger.log_error(f"chat: a step failed: {error}")
            return error
        return None

    def _settle(self, run: Run, failure: Exception | None) -> bool:
        """Tell the caller what the step gave; true when the run is over."""
        try:
            if failure:
                run.handle.cancel()
                raise failure
            return self._report(run)
        except Exception as error:
            pb.Logger.log_error(f"chat: a run failed: {type(error).__name__}")
            reply.refuse(run.sender, RuntimeError(str(error)))
            return True

    def _report(self, run: Run) -> bool:
        fresh = self._read(run)
        over = run.handle.get_status() != genai.GenerationStatus.RUNNING
        if not over:
            if fresh and run.ask.streaming and not run.gone:
                self._send(run, over=False)
            return False
        # TensorRT-LLM, too, has a text for a stream that was stopped, and an error for a single answer.
        if run.gone or (run.stopped and not run.ask.streaming):
            reply.cancelled(run.sender)
            return True
        if run.stopped:
            run.finish = "cancelled"
        elif run.finish == reply.UNFINISHED:
            raise RuntimeError("the engine dropped the request")
        self._send(run, over=True)
        return True

    def _read(self, run: Run) -> bool:
        """Take what the run's handle holds; true when that was something."""
        fresh = False
        while run.handle.can_read():
            for output in run.handle.read().values():
                fresh = True
                run.answer.ids += output.generated_ids
                run.logprob += sum(output.generated_log_probs)
                if output.finish_reason == genai.GenerationFinishReason.LENGTH:
                    run.finish = "length"
                elif output.finish_reason == genai.GenerationFinishReason.STOP:
                    run.finish = "stop"
        if fresh:
            run.times.last_token_time_ns = time.monotonic_ns()
            run.times.first_token_time_ns = run.times.first_token_time_ns or run.times.last_token_time_ns
        return fresh

    def _send(self, run: Run, over: bool) -> None:
        text, stop = run.answer.text(over)
        if run.ask.echo:
            text = run.ask.prompt + text
        state = reply.Reply(text.encode(), run.finish, stop or reply.UNFINISHED, run.logprob, run.times)
        reply.send(run.sender, run.ask.wants, state, final=over)
