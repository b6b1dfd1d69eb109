"""The dashboards. `python -m infra.watch boards` writes them to infra/grafana/dashboards."""

from __future__ import annotations

from infra.watch.panels import Board, Choice, Panel, Query, Row

RATE = "[$__rate_interval]"


def quantile(share: float, histogram: str, by: str, where: str = "") -> str:
    """A quantile of a histogram, for each value of the labels `by`."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket{{{where}}}{RATE})))"


def p50_p99(histogram: str, by: str, where: str = "") -> list[Query]:
    """Both, named by their labels."""
    name = "".join(f"{{{{{label.strip()}}}}} " for label in by.split(",")) if by else ""
    return [Query(quantile(share, histogram, by, where), f"{name}p{round(100 * share)}") for share in (0.5, 0.99)]


POOL = 'pool=~"$pool"'
GROUP = 'group=~"$group"'
PLACE = 'instance=~"$instance"'

PROMISES = Board(
    "parley-promises",
    "Parley: promises",
    [
        Row(
            "What users wait for",
            [
                Panel(
                    "First text", p50_p99("parley_first_text_seconds", "pool, tier", POOL), "s", 0.5, "At the edges."
                ),
                Panel(
                    "Between pieces of text",
                    p50_p99("parley_text_gap_seconds", "pool, tier", POOL),
                    "s",
                    0.05,
                    "At the edges. Pieces that come together have a gap of 0.",
                ),
                Panel(
                    "Budget burnt, times too fast",
                    [
                        Query(f"pool:first_text_late:ratio_rate1h{{{POOL}}} / 0.01", "{{pool}} first text, 1 h"),
                        Query(f"pool:text_gap_late:ratio_rate1h{{{POOL}}} / 0.01", "{{pool}} gaps, 1 h"),
                    ],
                    limit=14.4,
                    description="1: the 1% that may be late is just used up. 14.4 for an hour pages.",
                ),
            ],
        ),
        Row(
            "Where the time goes",
            [
                Panel(
                    "p99 of each stage until the first text",
                    [Query(quantile(0.99, "parley_stage_seconds", "stage", POOL), "{{stage}}")],
                    "s",
                    description="Moderation works beside the others: only the guard waits for it.",
                    wide=2,
                ),
                Panel(
                    "p50 of each stage",
                    [Query(quantile(0.5, "parley_stage_seconds", "stage", POOL), "{{stage}}")],
                    "s",
                ),
            ],
        ),
        Row(
            "Turns",
            [
                Panel(
                    "Ends by status",
                    [
                        Query(
                            f"sum by (pool, status) (rate(parley_turns_ended_total{{{POOL}}}{RATE}))",
                            "{{pool}} {{status}}",
                        )
                    ],
                    "reqps",
                ),
                Panel(
                    "Failures by code",
                    [Query(f'sum by (code) (rate(parley_turns_ended_total{{code!=""}}{RATE}))', "{{code}}")],
                    "reqps",
                ),
                Panel(
                    "Prompts blocked, by policy",
                    [Query("policy:prompts_blocked:ratio_increase10m", "{{policy}}")],
                    "percentunit",
                    0.2,
                ),
                Panel(
                    "Prompts by outcome",
                    [Query(f"sum by (outcome) (rate(parley_edge_prompts_total{RATE}))", "{{outcome}}")],
                    "reqps",
                ),
                Panel("Acceptance: to the log's acknowledgement", p50_p99("parley_edge_acceptance_seconds", ""), "s"),
                Panel(
                    "Open connections",
                    [
                        Query("sum by (transport) (parley_edge_streams)", "{{transport}}"),
                        Query("sum(parley_edge_feeds)", "responses being read"),
                    ],
                ),
                Panel(
                    "Events to clients",
                    [Query(f"sum by (transport) (rate(parley_edge_events_total{RATE}))", "{{transport}}")],
                    "cps",
                ),
            ],
        ),
    ],
    [Choice("pool", "parley_stage_seconds_count")],
)

LAG = Board(
    "parley-lag",
    "Parley: lag",
    [
        Row(
            "As the brokers tell: also of groups that are dead",
            [
                Panel(
                    "Worst state",
                    [Query(f"max by (group) (parley_lag_state{{{GROUP}}})", "{{group}}")],
                    limit=1,
                    description="0 OK, 1 WARN, 2 NO_COMMIT, 3 REWIND, 4 STALL, 5 STOP.",
                ),
                Panel(
                    "Lag in seconds",
                    [Query(f"max by (group) (parley_lag_seconds{{{GROUP}}})", "{{group}}")],
                    "s",
                    description="Age of the oldest record that is not done with.",
                ),
                Panel(
                    "Lag in records",
                    [Query(f"sum by (group, stage) (parley_lag_records{{{GROUP}}})", "{{group}} {{stage}}")],
                    description="Running is not lag: an answer may be long.",
                ),
                Panel(
                    "Oldest waiting record",
                    [
                        Query(
                            f'max by (group) (parley_lag_oldest_seconds{{{GROUP}, stage="waiting"}})',
                            "{{group}}",
                        )
                    ],
                    "s",
                    10,
                ),
                Panel(
                    "Age of the last commit, of busy partitions",
                    [
                        Query(
                            f"max by (group) (parley_lag_commit_age_seconds{{{GROUP}}} "
                            "and on (group, topic, partition) parley_lag_seconds > 0)",
                            "{{group}}",
                        )
                    ],
                    "s",
                ),
                Panel(
                    "Partitions without a holder",
                    [Query(f"count by (group) (parley_lag_held{{{GROUP}}} == 0)", "{{group}}")],
                ),
            ],
        ),
        Row(
            "Takeovers and rebalances",
            [
                Panel(
                    "Partitions that changed their holder",
                    [Query(f"sum by (group) (increase(parley_lag_takeovers_total{{{GROUP}}}[5m]))", "{{group}}")],
                ),
                Panel(
                    "Assignments, as members tell",
                    [
                        Query(
                            f"sum by (group) (increase(parley_consumer_rebalances_total{{{GROUP}}}[5m]))",
                            "{{group}}",
                        )
                    ],
                ),
                Panel("Members", [Query(f"parley_lag_members{{{GROUP}}}", "{{group}}")]),
            ],
        ),
        Row(
            "Records that went wrong",
            [
                Panel("Written to chat.dlq", [Query("sum(increase(parley_dlq_records_total[5m]))", "within 5 min")]),
                Panel(
                    "Given up, by group",
                    [Query("sum by (group) (increase(parley_dead_letters_total[5m]))", "{{group}}")],
                ),
                Panel("Lost to retention", [Query("sum by (group) (parley_lag_lost_records)", "{{group}}")]),
            ],
        ),
    ],
    [Choice("group", "parley_lag_members")],
)

ENGINES = Board(
    "parley-engines",
    "Parley: engines and pools",
    [
        Row(
            "Slots",
            [
                Panel(
                    "Slots used, by worker",
                    [Query(f"engine:slots_used:ratio{{{POOL}}}", "{{pool}} {{instance}}")],
                    "percentunit",
                    0.95,
                ),
                Panel(
                    "Turns that wait for a slot",
                    [Query(f"sum by (pool, tier) (vllm:num_requests_waiting{{{POOL}}})", "{{pool}} {{tier}}")],
                ),
                Panel(
                    "Slots taken: engine and workers",
                    [
                        Query("sum by (model) (engine_active_requests)", "engine: {{model}}"),
                        Query(f"sum by (pool) (vllm:num_requests_running{{{POOL}}})", "workers: {{pool}}"),
                    ],
                    description="The engine's above the workers' for long: slots that are taken for nobody.",
                ),
            ],
        ),
        Row(
            "Speed",
            [
                Panel(
                    "Engine: first token",
                    p50_p99("vllm:time_to_first_token_seconds", "pool", POOL),
                    "s",
                    description="From the request's arrival at the worker.",
                ),
                Panel("Engine: between chunks", p50_p99("vllm:inter_token_latency_seconds", "pool", POOL), "s", 0.05),
                Panel(
                    "Turn: time per token after the first text",
                    p50_p99("gen_ai_server_time_per_output_token_seconds", "pool", POOL),
                    "s",
                ),
                Panel(
                    "Tokens",
                    [
                        Query(f"sum by (pool) (rate(vllm:generation_tokens_total{{{POOL}}}{RATE}))", "{{pool}} made"),
                        Query(f"sum by (pool) (rate(vllm:prompt_tokens_total{{{POOL}}}{RATE}))", "{{pool}} of prompts"),
                    ],
                    "cps",
                ),
                Panel("Turn: duration", p50_p99("gen_ai_server_request_duration_seconds", "pool", POOL), "s"),
                Panel(
                    "Answers by how they ended",
                    [
                        Query(
                            f"sum by (finished_reason) (rate(vllm:request_success_total{{{POOL}}}{RATE}))",
                            "{{finished_reason}}",
                        )
                    ],
                    "reqps",
                ),
            ],
        ),
        Row(
            "Life",
            [
                Panel("Engines that answer", [Query("parley_engine_alive", "{{engine}}")]),
                Panel("A token from an idle engine", [Query("parley_engine_probe_seconds", "{{engine}}")], "s"),
                Panel(
                    "Deaths, failed runs, turns begun anew",
                    [
                        Query("sum by (engine) (increase(parley_engine_deaths_total[5m]))", "{{engine}} deaths"),
                        Query(
                            "sum by (engine, code) (increase(parley_engine_failures_total[5m]))", "{{engine}} {{code}}"
                        ),
                        Query("sum by (topic) (increase(parley_stalls_total[5m]))", "{{topic}} stalls"),
                    ],
                ),
            ],
        ),
    ],
    [Choice("pool", "parley_engine_slots")],
)

ROLE = Board(
    "parley-role",
    "Parley: one role",
    [
        Row(
            "Process",
            [
                Panel("Answers", [Query(f"up{{{PLACE}}}", "{{instance}}")]),
                Panel("CPU", [Query(f"rate(process_cpu_seconds_total{{{PLACE}}}{RATE})", "{{instance}}")], limit=1),
                Panel("Memory", [Query(f"process_resident_memory_bytes{{{PLACE}}}", "{{instance}}")], "bytes"),
            ],
        ),
        Row(
            "As a member of its group",
            [
                Panel(
                    "Running and waiting records",
                    [
                        Query(f"sum by (group) (parley_consumer_running_records{{{PLACE}}})", "{{group}} running"),
                        Query(f"sum by (group) (parley_consumer_waiting_records{{{PLACE}}})", "{{group}} waiting"),
                    ],
                ),
                Panel(
                    "Oldest running record",
                    [Query(f"max by (group) (parley_consumer_oldest_running_seconds{{{PLACE}}})", "{{group}}")],
                    "s",
                ),
                Panel(
                    "Partitions by what is done with them",
                    [Query(f"sum by (group, taking) (parley_consumer_partitions{{{PLACE}}})", "{{group}} {{taking}}")],
                ),
                Panel(
                    "Age of the last poll",
                    [Query(f"parley_consumer_poll_age_seconds{{{PLACE}}}", "{{instance}} {{group}}")],
                    "s",
                    30,
                ),
                Panel(
                    "Views: records by outcome",
                    [
                        Query(
                            f"sum by (group, outcome) (rate(parley_view_records_total{{{PLACE}}}{RATE}))",
                            "{{group}} {{outcome}}",
                        ),
                        Query(
                            f"sum by (outcome) (rate(parley_usage_records_total{{{PLACE}}}{RATE}))", "usage {{outcome}}"
                        ),
                    ],
                    "cps",
                ),
                Panel("Views that wait for their store", [Query(f"parley_view_waiting{{{PLACE}}}", "{{group}}")]),
            ],
        ),
    ],
    [Choice("instance", "up")],
)

BOARDS = (PROMISES, LAG, ENGINES, ROLE)
