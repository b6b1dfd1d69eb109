"""The traces role: each turn's end becomes a trace, sent to a collector by OTLP."""
