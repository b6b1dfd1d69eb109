"""What the batching worker speaks with an engine: Triton over gRPC, the tensors of TensorRT-LLM's llmapi model.

`client` is the only module here that does I/O; `contract`, `progress` and `stops` are pure.
"""
