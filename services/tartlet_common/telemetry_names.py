"""Names of spans, metrics and attributes; OpenTelemetry's GenAI conventions where they exist."""

from __future__ import annotations

# spans
SPAN_CLIENT_LAUNCH = "tartlet.client.launch"
SPAN_PROGRAM = "invoke_agent"  # GenAI: one run of a program
SPAN_CONTROL_PROGRAM = "tartlet.control.program"
SPAN_BATCH = "tartlet.control.step"
SPAN_ENGINE_STEP = "tartlet.worker.step"

# attributes
ATTR_PROGRAM_ID = "tartlet.program.id"
ATTR_PROGRAM_NAME = "gen_ai.agent.name"
ATTR_MODEL = "gen_ai.request.model"
ATTR_OPERATION = "gen_ai.operation.name"
ATTR_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ATTR_INPUT_TOKENS = "gen_ai.usage.input_tokens"
ATTR_ERROR = "error.type"
ATTR_TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - not a password
ATTR_STEP_COMMANDS = "tartlet.step.commands"
ATTR_STEP_TOKENS = "tartlet.step.tokens"
ATTR_STEP_DEVICE_TIME = "tartlet.step.device_time"  # s
ATTR_ENGINE_ID = "tartlet.engine.id"

# metrics
METRIC_REQUEST_DURATION = "gen_ai.server.request.duration"  # s
METRIC_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105 - s
METRIC_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"  # noqa: S105 - s
METRIC_TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - tokens
METRIC_PROGRAMS_RUNNING = "tartlet.programs.running"
METRIC_PROGRAMS_ENDED = "tartlet.programs.ended"
METRIC_PAGES_FREE = "tartlet.pages.free"
METRIC_PAGES_HELD = "tartlet.pages.held"
METRIC_STEP_DURATION = "tartlet.step.duration"  # s
METRIC_STEP_COMMANDS = "tartlet.step.commands"
METRIC_STEP_SPANS_LEFT_OUT = "tartlet.step.spans.left_out"
METRIC_LEDGER_LEAKS = "tartlet.ledger.leaks"
