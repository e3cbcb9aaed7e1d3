"""Names of spans, metrics and attributes; OpenTelemetry's GenAI conventions where they exist."""

from __future__ import annotations

# spans
SPAN_CLIENT_LAUNCH = "tartlet.client.launch"
SPAN_PROGRAM = "invoke_agent"  # the GenAI conventions' name for one run of a program
SPAN_CONTROL_PROGRAM = "tartlet.control.program"
SPAN_BATCH = "tartlet.control.step"
SPAN_ENGINE_STEP = "tartlet.worker.step"

# attributes
ATTR_PROGRAM_ID = "tartlet.program.id"
ATTR_PROGRAM_NAME = "gen_ai.agent.name"
ATTR_MODEL = "gen_ai.request.model"
ATTR_OPERATION = "gen_ai.operation.name"
ATTR_PROVIDER = "gen_ai.provider.name"
ATTR_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ATTR_INPUT_TOKENS = "gen_ai.usage.input_tokens"
ATTR_ERROR = "error.type"
ATTR_TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - not a password
ATTR_STEP_COMMANDS = "tartlet.step.commands"
ATTR_STEP_TOKENS = "tartlet.step.tokens"
ATTR_STEP_DEVICE_TIME = "tartlet.step.device_time"  # s
ATTR_ENGINE_ID = "tartlet.engine.id"
ATTR_POOL = "tartlet.pool"
ATTR_MEMORY_USE = "tartlet.memory.use"
ATTR_PEER = "tartlet.link.peer"  # runtime or worker
ATTR_PAUSE = "tartlet.recovery.pause"  # s
ATTR_PAUSE_CAUSE = "tartlet.recovery.cause"  # worker, control or runtime
ATTR_CERTIFICATE = "tartlet.certificate"  # the setting that names the file
ATTR_HTTP_METHOD = "http.request.method"
ATTR_HTTP_ROUTE = "http.route"
ATTR_HTTP_STATUS = "http.response.status_code"

# events of spans
EVENT_RECOVERING = "tartlet.program.recovering"

# metrics
METRIC_AGENT_DURATION = "gen_ai.invoke_agent.duration"  # s
METRIC_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"  # noqa: S105 - s
METRIC_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"  # noqa: S105 - s
METRIC_TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - tokens
METRIC_PROGRAMS_RUNNING = "tartlet.programs.running"
METRIC_PROGRAMS_ENDED = "tartlet.programs.ended"
METRIC_PAGES_FREE = "tartlet.pages.free"
METRIC_PAGES_HELD = "tartlet.pages.held"
METRIC_WORK_WAITING = "tartlet.work.waiting"  # s
METRIC_WORK_PROGRAMS = "tartlet.work.programs"
METRIC_STEP_DURATION = "tartlet.step.duration"  # s
METRIC_STEP_COMMANDS = "tartlet.step.commands"
METRIC_STEP_SPANS_LEFT_OUT = "tartlet.step.spans.left_out"
METRIC_LEDGER_LEAKS = "tartlet.ledger.leaks"
METRIC_MEMORY_TAKEN = "tartlet.memory.taken"  # bytes
METRIC_MEMORY_LIMIT = "tartlet.memory.limit"  # bytes
METRIC_LINK_RESUMES = "tartlet.link.resumes"
METRIC_DIRECTORY_LAG = "tartlet.directory.lag"  # s
METRIC_DIRECTORY_WRITTEN = "tartlet.directory.written"
METRIC_DIRECTORY_REBUILDS = "tartlet.directory.rebuilds"
METRIC_DIRECTORY_LOSSES = "tartlet.directory.losses"
METRIC_DIRECTORY_LEFT_OUT = "tartlet.directory.left_out"
METRIC_DIRECTORY_RECALLED = "tartlet.directory.recalled"
METRIC_LEADING = "tartlet.control.leading"
METRIC_CERTIFICATE_EXPIRY = "tartlet.certificate.expiry"  # s since 1970
METRIC_HTTP_DURATION = "http.server.request.duration"  # s
METRIC_HTTP_ACTIVE = "http.server.active_requests"
METRIC_FIRST_BYTE = "tartlet.gateway.time_to_first_byte"  # s

# values that the conventions define
OPERATION = SPAN_PROGRAM
PROVIDER = "tartlet"
BUCKETS: dict[
    str, tuple[float, ...]
] = {  # upper bounds of a histogram in seconds; the library's defaults begin at 5, which suits milliseconds
    METRIC_AGENT_DURATION: tuple(0.01 * 2**i for i in range(14)),
    METRIC_TIME_TO_FIRST_TOKEN: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
        *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    ),
    METRIC_TIME_PER_OUTPUT_TOKEN: (
        *(0.001, 0.0025, 0.005),  # small models on a CPU: below the conventions' first bound
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ),
    METRIC_TOKEN_USAGE: tuple(4.0**i for i in range(14)),
    METRIC_HTTP_DURATION: tuple(0.005 * 2**i for i in range(16)),
    METRIC_FIRST_BYTE: tuple(0.001 * 2**i for i in range(16)),
    METRIC_STEP_DURATION: tuple(0.001 * 2**i for i in range(14)),  # not from the conventions, like the next
    METRIC_STEP_COMMANDS: tuple(2.0**i for i in range(14)),
}
