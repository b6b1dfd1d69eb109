"""Moderation: a classifier scores text, a policy turns scores into decisions, a guard applies them to a stream."""
