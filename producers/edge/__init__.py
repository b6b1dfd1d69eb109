"""The edge: WebSocket, SSE and REST on one side, prompts and token routes on the other."""
