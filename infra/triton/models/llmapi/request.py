"""One request of the llmapi contract, read from its tensors once and kept as plain values."""

from dataclasses import dataclass

import triton_python_backend_utils as pb

DEFAULT_MAX_TOKENS = 32
"""The length of an answer when nobody asks for one, as in TensorRT-LLM."""


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens; None where the caller left it to the engine."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    frequency_penalty: float
    presence_penalty: float
    seed: int

    @property
    def greedy(self) -> bool:
        """No sampling asked, or parameters that leave a single choice."""
        asked = [x for x in (self.temperature, self.top_k, self.top_p) if x is not None]
        return not asked or self.temperature == 0 or self.top_p == 0 or self.top_k == 1


@dataclass(frozen=True)
class Wants:
    """Which outputs beside the text the caller asked for."""

    finish_reason: bool
    stop_reason: bool
    cumulative_logprob: bool
    perf_metrics: bool


@dataclass(frozen=True)
class Ask:
    """A request for an answer."""

    id: str
    prompt: str
    streaming: bool
    max_tokens: int
    sampling: Sampling
    stops: tuple[str, ...]
    wants: Wants
    echo: bool
    guide_type: str
    guide: str


def is_stop(request) -> bool:
    """Whether the request asks to stop the run that has its id."""
    return bool(scalar(request, "stop", False))


def read(request) -> Ask:
    """The request as values.

    :raises ValueError: a tensor has not the one element it must have, or a value makes no sense.
    """
    max_tokens = scalar(request, "sampling_param_max_tokens", DEFAULT_MAX_TOKENS)
    if max_tokens < 1:
        raise ValueError(f"sampling_param_max_tokens must be 1 or more, not {max_tokens}")
    prompts = texts(request, "text_input")
    if len(prompts) != 1:
        raise ValueError(f"text_input must hold one prompt, not {len(prompts)}")
    return Ask(
        id=request.request_id(),
        prompt=prompts[0],
        streaming=bool(scalar(request, "streaming", False)),
        max_tokens=max_tokens,
        sampling=Sampling(
            temperature=scalar(request, "sampling_param_temperature"),
            top_k=scalar(request, "sampling_param_top_k"),
            top_p=scalar(request, "sampling_param_top_p"),
            frequency_penalty=scalar(request, "sampling_param_frequency_penalty", 0.0),
            presence_penalty=scalar(request, "sampling_param_presence_penalty", 0.0),
            seed=scalar(request, "sampling_param_seed", 0),
        ),
        stops=tuple(texts(request, "sampling_param_stop")),
        wants=Wants(
            finish_reason=bool(scalar(request, "return_finish_reason", False)),
            stop_reason=bool(scalar(request, "return_stop_reason", False)),
            cumulative_logprob=bool(scalar(request, "return_cumulative_logprob", False)),
            perf_metrics=bool(scalar(request, "sampling_param_return_perf_metrics", False)),
        ),
        # False is the contract's default, and puts the prompt in front of the answer.
        echo=not scalar(request, "sampling_param_exclude_input_from_output", False),
        guide_type=scalar(request, "guided_decoding_guide_type", ""),
        guide=scalar(request, "guided_decoding_guide", ""),
    )


def scalar(request, name, default=None):
    """The one element of an input, or the default where the input was not sent.

    :raises ValueError: the input holds another number of elements.
    """
    tensor = pb.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    array = tensor.as_numpy()
    if array.size != 1:
        raise ValueError(f"{name} must hold one element, not {array.size}")
    item = array.item(0)
    return item.decode() if isinstance(item, bytes) else item


def texts(request, name) -> list[str]:
    """All elements of a STRING input; empty where it was not sent."""
    tensor = pb.get_input_tensor_by_name(request, name)
    return [] if tensor is None else [item.decode() for item in tensor.as_numpy().reshape(-1)]
