"""The gauge that shows how many of an engine's slots are taken."""

import triton_python_backend_utils as pb


class ActiveRequests:
    """`engine_active_requests{model=…}` on the server's metrics port; told only of changes, each is a message."""

    def __init__(self, model: str) -> None:
        # The family must live as long as its metric.
        self._family = pb.MetricFamily(
            name="engine_active_requests",
            kind=pb.MetricFamily.GAUGE,
            description="Requests that hold a slot of the engine",
        )
        self._metric = self._family.Metric(labels={"model": model})
        self._shown = 0
        self._metric.set(0)

    def show(self, count: int) -> None:
        if count != self._shown:
            self._shown = count
            self._metric.set(count)
