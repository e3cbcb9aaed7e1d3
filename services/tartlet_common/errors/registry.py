"""The one registry of errors: number, name, message, remedy, retryable.

Every error that crosses a process boundary is a `TartletError`. Its number is part of the ABI and never reused; the
SDK's exceptions and the table in `docs/errors.md` are generated from `REGISTRY` (`python -m
tools.gen_errors`). Numbers: 1xx bad requests, 2xx the program's own fault, 3xx limits and memory, 4xx parts of the
system that went away, 5xx checkpoints and start-up, 9xx faults of Tartlet.
"""

from __future__ import annotations

from tartlet_common.errors.adapters import *  # noqa: F403 - this is where everybody finds them
from tartlet_common.errors.base import REGISTRY as REGISTRY  # noqa: PLC0414 - this is where everybody finds them
from tartlet_common.errors.base import TartletError as TartletError  # noqa: PLC0414 - the same
from tartlet_common.errors.base import UnknownError as UnknownError  # noqa: PLC0414 - the same
from tartlet_common.errors.base import register as _register
from tartlet_common.errors.bundles import *  # noqa: F403 - the same
from tartlet_common.errors.children import *  # noqa: F403 - the same
from tartlet_common.errors.recorded import Diverged as Diverged  # noqa: PLC0414 - the same
from tartlet_common.errors.recorded import NoJournal as NoJournal  # noqa: PLC0414 - the same
from tartlet_common.errors.recorded import NotForkable as NotForkable  # noqa: PLC0414 - the same
from tartlet_common.errors.shares import *  # noqa: F403 - the same
from tartlet_common.errors.starting import AddressInUse as AddressInUse  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import CheckpointBroken as CheckpointBroken  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import CheckpointMissing as CheckpointMissing  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import DiskFull as DiskFull  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import LeaseLost as LeaseLost  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import OutOfDeviceMemory as OutOfDeviceMemory  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import StartFailed as StartFailed  # noqa: PLC0414 - the same
from tartlet_common.errors.starting import UnknownFamily as UnknownFamily  # noqa: PLC0414 - the same
from tartlet_common.errors.web import *  # noqa: F403 - the same

# ---- 1xx: bad requests ------------------------------------------------------------------------------------------


@_register(101)
class UnsupportedAbi(TartletError):
    message = "ABI version {version} is not supported; this host speaks {supported}"
    remedy = "Rebuild the program with the SDK of this release."


@_register(102)
class UnknownOperation(TartletError):
    message = "unknown operation {op}"
    remedy = "Rebuild the program with the SDK of this release, or check available_traits(model)."


@_register(103)
class MalformedSubmission(TartletError):
    message = "malformed submission: {detail}"
    remedy = "Use the SDK to build submissions; a hand-written one must follow docs/abi.md."


@_register(104)
class InvalidArgument(TartletError):
    message = "{argument}: {detail}"
    remedy = ""  # the message says what to do


@_register(105)
class UnknownResource(TartletError):
    message = "{kind} {id} is not allocated"
    remedy = "Allocate it first; a freed or never allocated id can't be used."


@_register(106)
class ResourceInUse(TartletError):
    message = "{kind} {id} is already allocated"
    remedy = "Choose an id that is free, or free it first."


@_register(107)
class UnknownQueue(TartletError):
    message = "queue {id} does not exist"
    remedy = "Create it with create_queue first."


@_register(108)
class UnknownModel(TartletError):
    message = "no engine serves a model named {model!r}; available: {available}"
    remedy = "Use one of the available models, or start an engine with this one."


@_register(109)
class UnknownProgram(TartletError):
    message = "no program {program}"
    remedy = "List them with `tartlet ps --all`. A server forgets ended programs after a while, and when it stops."


@_register(110)
class UnknownInferlet(TartletError):
    message = "no inferlet named {inferlet!r} in the catalogue"
    remedy = "Put it into the catalogue first, or launch it from its source."


@_register(111)
class InvalidSource(TartletError):
    message = "the program's source was refused: {detail}"
    remedy = "Correct the source as the message says."


@_register(112)
class InvalidConfig(TartletError):
    message = "configuration of {role}: {detail}"
    remedy = "`tartlet config` prints each value and where it came from."


@_register(113)
class PermissionDenied(TartletError):
    message = "{caller} may not call {method}"
    remedy = "Use a certificate whose identity may make this call: the table is in docs/security.md."


@_register(114)
class UnsupportedTrait(TartletError):
    message = "the model {model!r} does not offer {trait}"
    remedy = "Ask available_traits(model) and adapt, or choose another model; Tokenize needs a tokenizer.json."


@_register(115)
class ProtocolMismatch(TartletError):
    message = "{peer} speaks protocol {theirs}, this is {ours}"
    remedy = "Run the same release of Tartlet on both sides."


@_register(116)
class EngineMismatch(TartletError):
    message = "engine refused: {field} of model {model!r} is {theirs}, engines that serve it have {ours}"
    remedy = "Give it the settings of the engines that serve this name, or another name, or drain the older engines."


@_register(117)
class SourceTooLarge(TartletError):
    message = "the program has {size} bytes; the limit is {limit}"
    remedy = "Make the program smaller, or raise source_bytes, a setting of the runtime."


@_register(118)
class ContextTooLong(TartletError):
    message = "position {position} is past the model's {limit} positions"
    remedy = "Shorten the context, or use a model with a longer one."


@_register(121)
class UnknownName(TartletError):
    message = "nothing is exported as {name!r}"
    remedy = "Export it first; an export ends when it was unused for its time or its tenant's budget is full."


@_register(122)
class NotPlain(TartletError):
    message = "the table can't be exported: {call} wrote slots whose content tokens alone don't tell"
    remedy = "Export contexts without masks, hidden or dropped tokens, and with each token at its own position."


@_register(124)
class UnknownPool(TartletError):
    message = "no engine of the pool {pool!r} is there for this program; pools that it may use: {available}"
    remedy = "Use one of these pools, or start an engine in one; control's shared_pools opens a pool to all tenants."


@_register(125)
class GrammarRefused(TartletError):
    message = "the grammar can't be used: {detail}"
    remedy = "Correct or simplify the grammar, or give fewer tokens to allow; the guide names kinds and limits."


# ---- 2xx: the program's own fault -------------------------------------------------------------------------------


@_register(201)
class ProgramFailed(TartletError):
    message = "the program raised an exception\n{traceback}"
    remedy = "The traceback names the line of the program."


@_register(202)
class ProgramTrapped(TartletError):
    message = "the program trapped: {detail}"
    remedy = "Correct the program; `tartlet run --native` runs a Python program under a debugger."


@_register(203)
class CorruptModule(TartletError):
    message = "not a valid WebAssembly module: {detail}"
    remedy = "Upload the compiler's .wasm output, unmodified."


@_register(204)
class CompileTimeout(TartletError):
    message = "compiling the module took longer than {limit_s} s"
    remedy = "Make the module smaller, or raise compile_timeout_s, a setting of the runtime."


# 206 is retired: commands behind a failed command end with that command's own error


@_register(207)
class ProgramKilled(TartletError):
    message = "the program was killed: {reason}"
    remedy = "Launch it again if this was not wanted."


@_register(208)
class DeadlineExceeded(TartletError):
    message = "the program ran longer than its deadline of {deadline_s} s"
    remedy = "Raise the deadline (--deadline), or generate less."


@_register(209)
class NotAllowed(TartletError):
    message = "an inferlet may not use {what}"
    remedy = "Grant the capability in the inferlet's spec, if there is one for it."


# ---- 3xx: limits and memory -------------------------------------------------------------------------------------


@_register(301)
class PageQuotaExceeded(TartletError):
    message = "KV pages: the program holds {held} and asked for {asked} more; its limit is {limit}"
    remedy = "Free pages, generate less, or raise the program's page limit."


@_register(302)
class ResourceQuotaExceeded(TartletError):
    message = "{kind}: the program holds {held} and asked for {asked} more; its limit is {limit}"
    remedy = "Free some, or raise the program's limit."


@_register(303, retryable=True)
class OutOfPages(TartletError):
    message = "the engine ran out of {kind} ({total} in all), and programs hold them that can't give way"
    remedy = "Launch it again later, use fewer pages, or start the engine with more memory."


@_register(304)
class ProgramTooLarge(TartletError):
    message = "{kind}: asked for {asked}; the engine has {total} in all"
    remedy = "Ask for fewer, or start the engine with more memory."


@_register(305)
class ProgramMemoryExceeded(TartletError):
    message = "the program used more than its {limit_bytes} bytes of memory"
    remedy = "Use less memory, or raise the limit: --max-memory, in MiB, up to memory_bytes, a setting of the runtime."


@_register(306)
class ProgramCpuExceeded(TartletError):
    message = "the program computed for {cpu_s} s without waiting; its limit is {limit_s} s"
    remedy = "Await something in the loop, or raise cpu_slice_s, a setting of the runtime."


@_register(307)
class TooManyCommands(TartletError):
    message = "commands in flight: {in_flight}; the limit is {limit}"
    remedy = "Await results before submitting more."


@_register(308)
class OutputTooLarge(TartletError):
    message = "the program's output passed {limit} bytes unread"
    remedy = "Read the output as it comes, or raise output_bytes, a setting of the runtime."


@_register(309)
class JournalFull(TartletError):
    message = "the program's journal passed its {limit} bytes"
    remedy = "Launch with durable=False, or raise journal_bytes or journals_bytes, settings of the runtime."


@_register(310, retryable=True)
class Overloaded(TartletError):
    message = "{what} is full ({limit})"
    remedy = "Try again shortly."


@_register(311)
class FrameTooLarge(TartletError):
    message = "{size} {what}; the limit is {limit}"
    remedy = "Send long data in parts and return less; split a message, or the ids of one call, into several."


@_register(312)
class InboxFull(TartletError):
    message = "the program has {pending} unread messages; the limit is {limit}"
    remedy = "Let the program receive before sending more."


@_register(313, retryable=True)
class MemoryBudgetExceeded(TartletError):
    message = "{use}: asked for {asked} bytes of the runtime's {limit} bytes of memory; {free} are free"
    remedy = "Ask for less memory, try again later, or raise process_memory_bytes, a setting (or the pod's limit)."


@_register(314, retryable=True)
class CompilerMemoryExceeded(TartletError):
    message = "compiling the module takes more than the {limit} bytes of memory that a compiler may have now"
    remedy = "Make functions smaller, try again later, or raise process_memory_bytes, a setting (or the pod's limit)."


# ---- 4xx: parts of the system that went away --------------------------------------------------------------------


@_register(401, retryable=True)
class WorkerLost(TartletError):
    message = "the engine that held the program's state went away ({engine})"
    remedy = "Launch the program again; a new engine is started."


@_register(402, retryable=True)
class ControlLost(TartletError):
    message = "control went away, and the program's state can't be made again: {why}"
    remedy = "Launch the program again."


@_register(403, retryable=True)
class RuntimeLost(TartletError):
    message = "the runtime that ran the program went away"
    remedy = "Launch the program again."


@_register(404, retryable=True)
class Unavailable(TartletError):
    message = "{what} can't be reached: {detail}"
    remedy = "Start it with `tartlet serve`, or check the address."


@_register(405, retryable=True)
class Draining(TartletError):
    message = "engine {engine} was drained and has gone after its grace of {grace_s} s; the program had not ended"
    remedy = "Launch the program again. For longer programs, raise drain_grace_s (a pool's spec.drain.graceSeconds)."


@_register(406)
class Disconnected(TartletError):
    message = "the client went away"
    remedy = "Use `tartlet launch` for programs that should outlive their client."


@_register(407, retryable=True)
class NoEngine(TartletError):
    message = "no engine is ready"
    remedy = "Wait until `tartlet serve` says `serving at`; `tartlet doctor` or `kubectl get enginepool` shows engines."


@_register(408, retryable=True)
class ResumeRefused(TartletError):
    message = "the connection can't go on where it broke: {detail}"
    remedy = "Nothing needs to be done: the two processes begin anew. If this repeats, raise the grace period."


@_register(409, retryable=True)
class StaleIncarnation(TartletError):
    message = "this {peer} was replaced by one that started later"
    remedy = "End the earlier process. If a clock was set back, wait for 10 seconds."


@_register(410)
class Undelivered(TartletError):
    message = "a message of {size} bytes between two processes was not taken in {attempts} connections"
    remedy = "Send less at once. If this repeats, look for the cause in the logs of both processes and of proxies."


@_register(411, retryable=True)
class Superseded(TartletError):
    message = "another runtime has taken over program {program}"
    remedy = "Attach to the program again: it goes on there."


@_register(412, retryable=True)
class JournalUnavailable(TartletError):
    message = "the program's journal can't be stored or read: {detail}"
    remedy = "Check the journals' Redis (journal_url), or launch with durable=False."


@_register(413, retryable=True)
class EmbedLost(TartletError):
    message = "embed {embed} was lost with an engine, and the {call} that wrote the embed can't be done again"
    remedy = "Read outputs before their table is overwritten or freed, or launch the program again."


# ---- 9xx: ours --------------------------------------------------------------------------------------------------


@_register(901, retryable=True)
class EngineFailure(TartletError):
    message = "the engine failed: {detail}"
    remedy = "Launch the program again; if the failure repeats, report it with the worker's log."


@_register(999)
class InternalError(TartletError):
    pass
