"""Chaos on the real stack: everything is killed, frozen or cut off while users chat, and then all that was said is
compared (see checker.py). `python -m tests.chaos` or `make chaos`.
"""
