"""What the three models share: reading a request of TensorRT-LLM's llmapi contract and answering it.

A folder beside the models, not a model: it has no config.pbtxt, and the server loads models by name. Every
model.py puts the repository on its path to reach it.
"""
