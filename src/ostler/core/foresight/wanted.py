"""The machine that a request describes: the smallest that could run one task of it."""

from ostler.domain.labels import Constraint
from ostler.domain.quantities import show_cores, show_mib
from ostler.domain.resources import Request
from ostler.domain.worker import Capabilities, DeviceInfo, Slots

ANY = "any machine"
FACTS = ("hostname", "os", "arch", "python")
"""What a machine announces outside its labels, and rules on labels can name."""
SMALLEST_MIB = 1024
"""Of a machine whose memory nobody asks for."""
SHARED_DEVICE_MIB = 24 * 1024
"""Of a device of which only a part is asked for, whatever its size."""


def machine_for(request: Request, hostname: str = "") -> Capabilities:
    devices = _devices(request)
    cuda = request.prefers_cuda and request.cuda_first_s > 0
    return Capabilities(
        gpu_backend=request.backend or ("nvidia" if devices or cuda else "cpu"),
        gpu_count=len(devices) or int(cuda),
        gpu_type=request.gpu_type.partition("|")[0],
        devices=devices,
        cpu_count=max(1000, request.cores_milli) / 1000,
        memory_gb=max(SMALLEST_MIB, request.memory_mib) / 1024,
        hostname=_fact(request, "hostname") or hostname,
        os=_fact(request, "os"),
        arch=_fact(request, "arch"),
        python=_fact(request, "python"),
        labels=labels_for(request),
    )


def slots_for(request: Request) -> Slots:
    return Slots(batch_total=int(request.pool == "batch"), service_total=int(request.pool == "service"))


def _devices(request: Request) -> list[DeviceInfo]:
    if request.gpu_count:
        each = -(-request.vram_mib // request.gpu_count)
        return [DeviceInfo(index=index, vram_gb=each / 1024) for index in range(request.gpu_count)]
    if request.gpu_milli:
        whole = max(SHARED_DEVICE_MIB, request.vram_mib)
        return [DeviceInfo(vram_gb=whole / 1024)]
    return [DeviceInfo(vram_gb=request.vram_mib / 1024)] if request.vram_mib else []


def labels_for(request: Request) -> dict[str, str]:
    return {rule.label: _value(rule) for rule in request.labels if rule.op != "!=" and rule.label not in FACTS}


def _fact(request: Request, name: str) -> str:
    if name == "hostname" and request.allowed_hosts:
        return request.allowed_hosts[0]
    return next((_value(rule) for rule in request.labels if rule.label == name and rule.op != "!="), "")


def _value(rule: Constraint) -> str:
    """Returns the plainest value that the rule accepts, or its own value if no plain one is found."""
    own = rule.value
    match rule.op:
        case "in":
            return rule.choices()[0]
        case "exists":
            return "yes"
        case ">":
            tries = [f"{own}.1", f"{own}1", "0"]
        case "<":
            tries = ["0", "-1", f"{own}1", "A"]
        case _:
            return own
    return next((text for text in tries if rule.holds({rule.label: text})), own)


def words(request: Request) -> str:
    """'a machine with 2 A100 (80 GiB together), 8 cores and 64 GiB of memory'."""
    parts = [_gpu_words(request)]
    if request.cores_milli:
        parts.append(f"{show_cores(request.cores_milli)} core{'' if request.cores_milli == 1000 else 's'}")
    if request.memory_mib:
        parts.append(f"{show_mib(request.memory_mib)} of memory")
    facts = {name: _fact(request, name) for name in FACTS}
    parts += [f"{name} = {value}" for name, value in (facts | labels_for(request)).items() if value]
    told = [part for part in parts if part]
    listed = f"{', '.join(told[:-1])} and {told[-1]}" if len(told) > 1 else "".join(told)
    return f"a machine with {listed}" if told else ANY


def _gpu_words(request: Request) -> str:
    kind = (request.gpu_type.partition("|")[0].upper() or request.backend or "").strip()
    kind = f"{kind} GPU" if kind else "GPU"
    if request.gpu_count:
        gpus = f"{request.gpu_count} {kind}{'' if request.gpu_count == 1 else 's'}"
        return f"{gpus} ({show_mib(request.vram_mib)} of VRAM together)" if request.vram_mib else gpus
    if request.shares_gpu:
        some = show_mib(request.vram_mib) if request.vram_mib else f"{request.gpu_milli / 1000:g} of its memory"
        return f"a {kind} ({some} free)"
    return "a CUDA GPU" if request.prefers_cuda and request.cuda_first_s else request.backend.replace("cpu", "")
