"""What a request asks, in the terms of OpenVINO GenAI."""

import openvino_genai as genai
from llmapi.request import Ask


def config_of(ask: Ask, eos_token_id: int) -> genai.GenerationConfig:
    """The generation config of a request.

    :raises ValueError: parameters that the engine can't do, by name.
    """
    config = genai.GenerationConfig()
    config.set_eos_token_id(eos_token_id)
    config.max_new_tokens = ask.max_tokens
    _sample(config, ask)
    config.stop_strings = set(ask.stops)
    # The engine would cut whole tokens, and leave the letters before a stop string that begins inside one, or
    # take them with it. It only tells when to end; `Answer` cuts.
    config.include_stop_str_in_output = True
    config.logprobs = 1 if ask.wants.cumulative_logprob else 0
    if ask.guide_type:
        config.structured_output_config = _guide(ask.guide_type, ask.guide)
    try:
        config.validate()
    except RuntimeError as error:
        raise ValueError(_reason(error)) from error
    return config


def _sample(config: genai.GenerationConfig, ask: Ask) -> None:
    sampling = ask.sampling
    config.frequency_penalty = sampling.frequency_penalty
    config.presence_penalty = sampling.presence_penalty
    config.do_sample = not sampling.greedy
    if sampling.greedy:
        return
    config.temperature = 1.0 if sampling.temperature is None else sampling.temperature
    if sampling.top_k:
        config.top_k = sampling.top_k
    if sampling.top_p is not None:
        config.top_p = sampling.top_p
    config.rng_seed = sampling.seed


def _guide(kind: str, guide: str) -> genai.StructuredOutputConfig:
    """Constrained decoding, by the guide types of TensorRT-LLM."""
    config = genai.StructuredOutputConfig()
    match kind:
        case "json":
            config.json_schema = '{"type": "object"}'
        case "json_schema":
            config.json_schema = guide
        case "regex":
            config.regex = guide
        case "ebnf_grammar":
            config.grammar = guide
        case _:
            raise ValueError(
                f"guided_decoding_guide_type must be json, json_schema, regex or ebnf_grammar, not {kind!r}"
            )
    return config


def _reason(error: RuntimeError) -> str:
    """The last line of an error that begins with the place in the library's source."""
    return str(error).strip().splitlines()[-1]
