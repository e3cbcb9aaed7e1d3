"""`tartlet run`: a program to its end, on a stack of its own or on a server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tartlet_cli.cluster.options import release_option
from tartlet_cli.commands.run_arguments import NOT_ON_CLUSTER, RunCommand, RunOptions, chosen_options
from tartlet_cli.console import exits
from tartlet_cli.console.calls import connect, on_signals, talk
from tartlet_cli.console.options import (
    PROGRAM_ARGS,
    capability_options,
    journal_options,
    json_option,
    limit_options,
    other_server_option,
    wants_help,
)
from tartlet_cli.console.recorded import Forking, divergence, journal_of
from tartlet_common.bundles.layout import is_bundle
from tartlet_common.errors.registry import Diverged, InvalidSource

_NATIVE_GRACE_S = 2.0
_SILENCE_S = 3.0
_STILL_RUNNING = "tartlet: still running; if it waits for a message: --interactive sends what you type"
_JOURNAL_DIR = "TARTLET_RUNTIME_JOURNAL_DIR"


@click.command(cls=RunCommand, context_settings=PROGRAM_ARGS, add_help_option=False)
@click.argument("file")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--model",
    metavar="PATH",
    help="Checkpoint directory. Default: the worker's setting, else $TARTLET_MODEL, else the demo model. "
    "On a server: a model's name. Default: the first by name that is ready.",
)
@click.option(
    "--engine",
    type=click.Choice(["torch", "fake"]),
    help="What computes; fake needs no model. Default: the worker's setting (TARTLET_WORKER_ENGINE, [worker] in "
    "--config), else torch.",
)
@other_server_option
@click.option("--inferlet", is_flag=True, help="FILE is not a file, but the name of a program in a server's catalogue.")
@click.option("--kube", is_flag=True, help="Run the program on a Kubernetes cluster, through its API server.")
@click.option(
    "--namespace", metavar="NAME", help="With --kube: namespace. Default: the context's. Also -n, before FILE."
)
@release_option
@click.option("--kube-context", "context", metavar="NAME", help="With --kube: context. Also --context, before FILE.")
@click.option(
    "--kubeconfig", metavar="FILE", help="With --kube: kubeconfig. Default: $KUBECONFIG, else ~/.kube/config."
)
@click.option(
    "--native", is_flag=True, help="Run the file as an ordinary process, outside the sandbox, so that pdb works."
)
@click.option("--interactive", is_flag=True, help="Send each line of standard input to the program as a message.")
@click.option("--seed", type=int, help="Seed of the program's randomness (with --native, of the module `random`).")
@journal_options
@capability_options
@click.option("--quiet", is_flag=True, help="Don't print the closing line.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings of the roles.")
@limit_options
@json_option
@click.pass_context
def run(ctx: click.Context, /, file: str, args: tuple[str, ...], **options: Any) -> None:
    """Run a program (a .py file, a directory, an archive or a core .wasm module) and stream its output.

    Options of this command may stand anywhere; all other options, and everything after `--`, go to the program.

    \b
    Examples:
      tartlet run inferlets/std/text_completion.py --prompt "374+588=" --max-tokens 64
      tartlet run my_program.py --model /path/to/checkpoint --temperature 0.7
      tartlet run my_agent --question "Why?"      # a directory with main.py: a program of several files
      tartlet run --native my_program.py          # pdb and prints work
      tartlet run --engine fake my_program.py     # no model, no torch
      tartlet run --server local my_program.py    # on a running `tartlet serve`
      tartlet run --inferlet agent                # from that server's catalogue, by name
      tartlet run --kube my_program.py            # on a cluster that runs Tartlet
      tartlet run --interactive chat.py           # each line that you type is a message
      tartlet run my_program.py -- --seed 3       # --seed for the program
    """  # noqa: D301 - \b is click's mark for a paragraph not to be wrapped
    wants_help(file, ctx)
    raise SystemExit(execute(chosen_options(ctx, file, args, options)))


def run_on_cluster() -> click.Command:
    """Make the command `run` of the plugin of kubectl, which always runs on the cluster."""

    @click.pass_context
    def callback(ctx: click.Context, /, file: str, args: tuple[str, ...], **options: Any) -> None:
        wants_help(file, ctx)
        absent = {"kube": True, "engine": None, "server": None, "native": False, "config": None}
        ctx.invoke(run, file=file, args=args, **options, **absent)

    elsewhere = ("tls_certificate", "tls_key", "tls_authority", "tls_domain", "kube", *NOT_ON_CLUSTER)
    params = [copy.copy(param) for param in run.params if param.name not in elsewhere]
    for param in params:
        if isinstance(param, click.Option) and param.name == "model":
            param.metavar, param.help = "NAME", "A model's name. Default: the runtime's first."
        elif isinstance(param, click.Option) and param.help:
            told = param.help.removeprefix("With --kube: ")
            param.help = told[0].upper() + told[1:]
    text = """Run a program on the cluster and stream its output; Ctrl-C ends it.

    Options of this command may stand anywhere; all other options, and everything after `--`, go to the program.

    \b
    Examples:
      kubectl tartlet run my_program.py --prompt hello
      kubectl tartlet run -n production --inferlet answer
    """
    return RunCommand(
        "run", callback=callback, params=params, context_settings=PROGRAM_ARGS, add_help_option=False, help=text
    )


def execute(options: RunOptions) -> int:
    """Run the program to its end; return the exit code."""
    from tartlet_common.errors.registry import TartletError
    from tartlet_common.telemetry import telemetry

    try:
        telemetry.setup("client")
        return asyncio.run(_Session(options).run())
    except TartletError as e:
        exits.show(e)
        return exits.exit_code(e)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        exits.drop_output()
        return exits.PROGRAM_FAILED
    finally:
        telemetry.shutdown()


class _Session:
    """One run: the program, the stack if the command starts one, and their end at Ctrl-C."""

    def __init__(self, options: RunOptions) -> None:
        from tartlet_cli.console.terminal import Printer, ProgressLine

        self._options = options
        self._progress = ProgressLine()
        self._printer = Printer(quiet=options.quiet, as_json=options.as_json, native=options.native)
        self._interrupted = False
        self._stack: Any = None

    async def run(self) -> int:
        try:
            source = self._source()  # report a missing file before starting anything
        except InvalidSource as e:
            detail, name = str(e.fields["detail"]), self._options.file
            if isinstance(e.__cause__, FileNotFoundError) and not Path(name).suffix:
                detail += f"; to run a program of a server's catalogue, give --inferlet {name}"
            raise click.BadParameter(detail, param_hint="FILE") from e
        on_signals(self._interrupt)
        model = self._options.model or ""
        try:
            if self._options.kube is not None:
                from tartlet_cli.cluster.client import cluster_client

                async with cluster_client(self._options.kube, self._progress.show) as client:
                    self._progress.clear()
                    return await self._run_with(client, source, model)
            if self._options.server or self._options.inferlet:  # a catalogue is a running server's
                async with connect(self._options.server) as client:
                    return await self._run_with(client, source, model)
            async with self._own_stack() as stack, connect(stack.address) as client:
                return await self._run_with(client, source, "")
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            return exits.INTERRUPTED
        finally:
            self._progress.clear()

    def _source(self) -> Any:
        from tartlet.model import Language, Source

        if self._options.inferlet or not self._options.file:  # a fork may have the recorded source
            return None
        source = Source.from_file(self._options.file)
        if not self._options.native:
            return source
        if source.language is not Language.PYTHON:
            raise click.UsageError(f"--native is for Python files, and {self._options.file} is a WebAssembly module")
        return replace(source, language=Language.NATIVE)

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        """At the first signal, end the program and the stack in order; at the second, kill them."""
        if self._interrupted:
            if self._stack is not None:
                self._stack.kill()
            os._exit(exits.INTERRUPTED)
        self._interrupted = True
        task.cancel()

    @contextlib.asynccontextmanager
    async def _own_stack(self) -> Any:
        from tartlet.local import ROLES, LocalStack, Progress, StackConfig, Started
        from tartlet_cli.console.places import backend, http_flags, keep_newest, sweep
        from tartlet_cli.console.terminal import Waiting
        from tartlet_common.config.paths import make_private, run_dir
        from tartlet_common.errors.registry import TartletError

        options = self._options
        chosen = backend(options.engine, options.model, options.config)
        base = make_private(run_dir())
        sweep(base)
        directory = Path(tempfile.mkdtemp(prefix=f"run-{os.getpid()}-", dir=base))
        waiting = Waiting(ROLES)

        def report(event: Any) -> None:
            if self._printer.started_s:  # a role that dies later is started again without a line
                return
            if isinstance(event, Progress):
                waiting.told(event.role, event.text)
            elif isinstance(event, Started):
                waiting.serves(event.role)
            self._progress.show(str(waiting))

        env = {}
        if options.config is None and _JOURNAL_DIR not in os.environ:
            env[_JOURNAL_DIR] = str(base / "journals")  # a failed run's journal outlives the directory
        config = StackConfig(
            engine=chosen.engine,
            model=chosen.model,
            directory=directory,
            config=options.config,
            env=env,
            flags=http_flags(options.capabilities.http if options.capabilities else ()),
        )
        self._stack = LocalStack(config, report)
        self._progress.show(str(waiting))
        start = time.monotonic()
        try:
            async with self._stack as stack:
                self._progress.clear()
                self._printer.started_s = time.monotonic() - start
                yield stack
        except TartletError as e:
            self._progress.clear()
            if exits.exit_code(e) == exits.SYSTEM and (directory / "logs").is_dir():  # else nothing was started
                kept = base / f"logs-of-{directory.name}"
                (directory / "logs").rename(kept)
                keep_newest(base.glob("logs-of-*"))
                sys.stderr.write(f"logs: {kept}\n")
            raise
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def _run_with(self, client: Any, source: Any, model: str) -> int:
        from tartlet.model import LaunchSpec, Limits

        options = self._options
        spec = LaunchSpec(
            source=source,
            inferlet=options.file if options.inferlet else "",
            args=options.args,
            model=model,
            limits=Limits(**options.limits),
            durability=options.durability,
            capabilities=options.capabilities,
            seed=b"" if options.seed is None else options.seed,
            fork=None if options.forking is None else await self._fork(client, options.forking),
        )
        try:
            run = await client.run(spec=spec)
        except Diverged:
            if not (told := await self._divergence(spec.fork)):
                raise
            sys.stderr.write(told)
            return exits.PROGRAM_FAILED
        try:
            if options.interactive:
                return await talk(client, run.program_id, self._follow(run), quiet=options.quiet)
            if not options.native:
                return await self._follow(run)
            async with self._native_process(client, run.guest_token, source):
                return await self._follow(run)
        finally:
            run.cancel()

    async def _fork(self, client: Any, forking: Forking) -> Any:
        from tartlet.model import Fork
        from tartlet_cli.commands.programs import whole_id

        if forking.is_here or self._stack is not None:
            return Fork(forking.deliveries, journal=await journal_of(forking))
        return Fork(forking.deliveries, program_id=await whole_id(client, forking.run))

    async def _divergence(self, fork: Any) -> str:
        forking = self._options.forking
        if fork is None or forking is None or not fork.journal:
            return ""
        return await divergence(fork.journal, forking, self._options.args)

    async def _follow(self, run: Any) -> int:
        from tartlet_cli.console.terminal import Silence

        options = self._options
        alone = self._stack is not None and not options.interactive | options.native  # nobody can send it a message
        after_s = _SILENCE_S if alone and not options.quiet else None
        with Silence(after_s, lambda: self._printer.note(_STILL_RUNNING)) as silence:
            async for event in run:
                self._printer.event(event)
                silence.heard()
        ended = run.ended
        if ended.success:
            return 0
        return exits.exit_code(ended.error, ended=True) if ended.error is not None else exits.PROGRAM_FAILED

    @contextlib.asynccontextmanager
    async def _native_process(self, client: Any, token: str, source: Any) -> Any:
        """The guest outside the sandbox, on this terminal; it ends with the block."""
        from tartlet_common.rpc.endpoints import unix_path

        path = unix_path(client.address)
        if path is None:
            raise click.UsageError("--native needs a server on this machine (its guest socket is a Unix one)")
        env = os.environ | {
            "TARTLET_GUEST_SOCKET": str(path.parent / "guest.sock"),
            "TARTLET_GUEST_TOKEN": token,
            "TARTLET_RUN_DIR": str(path.parent),  # where the program's own `tartlet.AsyncClient` finds the server
        }
        with contextlib.ExitStack() as files:
            if is_bundle(source.data):
                archive = files.enter_context(tempfile.NamedTemporaryFile(prefix="tartlet-", suffix=".zip"))
                archive.write(source.data)
                archive.flush()
                env["TARTLET_GUEST_ARCHIVE"] = archive.name
            async with self._native(env) as process:
                yield process

    @contextlib.asynccontextmanager
    async def _native(self, env: dict[str, str]) -> Any:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "inferlet._running.native", self._options.file, *self._options.args, env=env
        )
        try:
            yield process
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(process.wait(), _NATIVE_GRACE_S)
                if status not in (0, exits.PROGRAM_FAILED):  # else it has said itself what there is to say
                    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
                    self._printer.note(f"The program's process ended {how}, without a result.")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
