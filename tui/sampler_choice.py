"""What the command line says of the sampler: which one is used, and what is asked of one that is started."""

from __future__ import annotations

from dataclasses import replace

from gpuprof.snapshots.errors import EXIT_USAGE, GpuprofError
from gpuprof.tui import sampler_process
from gpuprof.tui.sampler_process import SamplerOptions

TYPE_CHECKING = False  # not typing's, whose import takes longer than all that this module does
if TYPE_CHECKING:
    import argparse


def sampler_options(options: argparse.Namespace | None) -> SamplerOptions:
    """What the command line says of the sampler; None: nothing."""
    if options is None:
        return SamplerOptions()
    offcpu = offcpu_arguments(options)
    # Whose waits a running service follows was decided when it was started.
    use_service = options.service and not offcpu
    if options.socket and not use_service and options.command != "doctor":
        other = offcpu[0] if offcpu else "--no-service"
        raise GpuprofError(
            f"--socket names a sampler that runs, and with {other} one is started: leave one of them out",
            exit_code=EXIT_USAGE,
        )
    _refuse_what_is_settled(options, use_service=use_service)
    found = SamplerOptions(use_service=use_service, gpu_overhead=options.gpu_overhead, offcpu=offcpu)
    found = replace(found, socket_given=bool(options.socket))
    return replace(found, hz=options.hz or found.hz, socket_path=options.socket or found.socket_path)


def _refuse_what_is_settled(options: argparse.Namespace, *, use_service: bool) -> None:
    """GpuprofError where the sampler that is used runs already, and would not heed what is asked of one."""
    asked = {"--hz": options.hz, "--gpu-overhead": options.gpu_overhead}
    given = [name for name, value in asked.items() if value]
    if not given or not use_service or options.command in {"sampler", "doctor"}:
        return
    path = options.socket or sampler_process.SERVICE_SOCKET
    if not options.socket:
        service = sampler_process.connect_service(path)
        if service is None:
            return
        service.close()
    raise GpuprofError(
        f"the sampler at {path} was started with a {given[0]} of its own: leave {given[0]} out",
        "" if options.socket else "or add --no-service, to start a sampler beside it",
        EXIT_USAGE,
    )


def offcpu_arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """The arguments of the sampler itself that say whose waits it follows, and from which length on."""
    arguments = [part for pid in options.offcpu_pid or () for part in ("--offcpu-pid", str(pid))]
    arguments += ["--offcpu-all"] if options.offcpu_all else []
    if options.offcpu_threshold is not None:
        arguments += ["--offcpu-threshold", options.offcpu_threshold]
    return tuple(arguments)
