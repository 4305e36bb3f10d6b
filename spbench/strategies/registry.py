"""Strategies by name. Checking a name imports no torch; loading a strategy does.

A strategy is written ``name``, ``name:option`` or ``name:option=value``, with ``:`` between two.
Strategies of other packages join through the entry-point group ``spbench.strategies``. A package
that is broken must not take others along: it is an error only where its strategy is asked for by
name, and is left out of ``all``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from spbench.errors import Failure
from spbench.text import did_you_mean, first_line

if TYPE_CHECKING:
    from spbench.strategies.base import Strategy
    from spbench.strategies.fixed_axis import FixedAxis
    from spbench.workload.mesh import CaseMesh

BUILT_IN = {
    "dsp": "spbench.strategies.dsp:DSP",
    "ulysses": "spbench.strategies.ulysses:Ulysses",
    "megatron-sp": "spbench.strategies.megatron_sp:MegatronSP",
    "megatron-tp": "spbench.strategies.megatron_tp:MegatronTP",
    "rsa": "spbench.strategies.rsa:RingSelfAttention",
    "ring": "spbench.strategies.ring:Ring",
    "kv-gather": "spbench.strategies.kv_gather:KVGather",
    "attention-2d": "spbench.strategies.attention_2d:Attention2D",
    "usp": "spbench.strategies.usp:USP",
    "halo": "spbench.strategies.halo:Halo",
}

SUMMARIES = {
    "dsp": "shards an axis that is not attended, switches between sublayers",
    "ulysses": "swaps the sharded axis for sharded heads around attention",
    "megatron-sp": "cuts the weights, gathers and scatters around each sublayer",
    "megatron-tp": "cuts the weights, sums around each sublayer, no sequence parallelism",
    "rsa": "passes K, then V round a ring, one full row of scores",
    "ring": "passes K and V round a ring, merges blocks by log-sum-exp",
    "kv-gather": "gathers K and V, each rank attends with its own queries",
    "attention-2d": "gathers queries along rows of ranks, K and V along columns",
    "usp": "shares out heads among neighbours, another exchange across them",
    "halo": "exchanges the edges of windows, another strategy where there are none",
    "deepspeed-ulysses": "ulysses, the layer of DeepSpeed",
    "deepspeed-alst": "ulysses, DeepSpeed's for models of Hugging Face",
    "yunchang-ulysses": "ulysses, of yunchang",
    "yunchang-ring": "ring, of yunchang",
    "yunchang-usp": "usp, of yunchang",
    "torch-cp": "ring, the context parallel of torch, K and V gathered",
    "torch-kv-gather": "kv-gather, as torch does it",
    "diffusers-ulysses": "ulysses, of the models of diffusers",
    "diffusers-ring": "ring, of the models of diffusers",
    "diffusers-usp": "usp, of the models of diffusers",
    "para-attn-ulysses": "ulysses, of ParaAttention",
    "megatron-core-sp": "megatron-sp, the layers of megatron-core",
    "ring-flash-attn": "ring, of the package of that name",
    "ring-attention-pytorch": "ring, by lucidrains",
    "colossalai-rsa": "rsa, of ColossalAI, the paper's own code",
    "te-cp": "ring, of Transformer Engine; GPUs",
    "xfuser-usp": "usp, of xDiT; GPUs",
}

VENDORS = {
    "deepspeed-ulysses": "spbench.vendors.deepspeed_ulysses:DeepSpeedUlysses",
    "deepspeed-alst": "spbench.vendors.deepspeed_alst:DeepSpeedALST",
    "yunchang-ulysses": "spbench.vendors.yunchang_ulysses:YunchangUlysses",
    "yunchang-ring": "spbench.vendors.yunchang_ring:YunchangRing",
    "yunchang-usp": "spbench.vendors.yunchang_usp:YunchangUSP",
    "torch-cp": "spbench.vendors.torch_cp:TorchCP",
    "torch-kv-gather": "spbench.vendors.torch_kv_gather:TorchKVGather",
    "diffusers-ulysses": "spbench.vendors.diffusers_ulysses:DiffusersUlysses",
    "diffusers-ring": "spbench.vendors.diffusers_ring:DiffusersRing",
    "diffusers-usp": "spbench.vendors.diffusers_usp:DiffusersUSP",
    "para-attn-ulysses": "spbench.vendors.para_attn_ulysses:ParaAttnUlysses",
    "megatron-core-sp": "spbench.vendors.megatron_core_sp:MegatronCoreSP",
    "ring-flash-attn": "spbench.vendors.ring_flash_attn:RingFlashAttn",
    "ring-attention-pytorch": "spbench.vendors.ring_attention_pytorch:RingAttentionPytorch",
    "colossalai-rsa": "spbench.vendors.colossalai_rsa:ColossalAIRSA",
    "te-cp": "spbench.vendors.te_cp:TransformerEngineCP",
    "xfuser-usp": "spbench.vendors.xfuser_usp:XFuserUSP",
}
"""Other packages' own code, by the names of its adapters; ``all`` leaves them out, ``vendors`` is
all of them."""

PACKAGES = {
    **dict.fromkeys(("deepspeed-ulysses", "deepspeed-alst"), ("deepspeed",)),
    **dict.fromkeys(("yunchang-ulysses", "yunchang-ring", "yunchang-usp"), ("yunchang",)),
    **dict.fromkeys(("torch-cp", "torch-kv-gather"), ("torch",)),
    **dict.fromkeys(("diffusers-ulysses", "diffusers-ring", "diffusers-usp"), ("diffusers",)),
    "para-attn-ulysses": ("para-attn",),
    "megatron-core-sp": ("megatron-core",),
    "ring-flash-attn": ("ring-flash-attn",),
    "ring-attention-pytorch": ("ring-attention-pytorch",),
    "colossalai-rsa": ("colossalai",),
    "te-cp": ("transformer-engine",),
    "xfuser-usp": ("xfuser", "yunchang", "flash-attn"),
}
"""What pip must have for each of ``VENDORS``, as the adapters say, which load torch."""


def is_installed(vendor: str) -> bool:
    """Whether pip has all that an adapter needs. Imports nothing of it."""
    try:
        return all(distribution(package) for package in PACKAGES[vendor])
    except PackageNotFoundError:
        return False


OTHER_NAMES = {
    **dict.fromkeys(("deepspeed", "ds-ulysses"), "deepspeed-ulysses"),
    "ring-self-attention": "rsa",
    **dict.fromkeys(("ring-attention", "zigzag", "context-parallel", "cp"), "ring"),
    **dict.fromkeys(("kv-all-gather", "all-gather", "llama3", "gather"), "kv-gather"),
    **dict.fromkeys(("attention2d", "2d", "2d-attention"), "attention-2d"),
    **dict.fromkeys(("hybrid", "ulysses-ring", "2d-sp", "loongtrain"), "usp"),
    "yunchang": "yunchang-usp",
    **dict.fromkeys(("xdit", "xdit-usp", "xfuser"), "xfuser-usp"),
    **dict.fromkeys(("torch", "torch-context-parallel"), "torch-cp"),
    **dict.fromkeys(("megatron-core", "mcore"), "megatron-core-sp"),
    **dict.fromkeys(("diffusers", "para-attn"), "diffusers-ulysses"),
    **dict.fromkeys(("window", "sliding-window", "neighbour-exchange"), "halo"),
    **dict.fromkeys(("tp", "tensor-parallel", "megatron", "megatron-lm"), "megatron-tp"),
}
"""Each name, and the strategy that has it, or the nearest one here; for hints alone."""


def own_name(name: str) -> str:
    """The name that a strategy has here; one that is not known, in small letters."""
    plain = name.strip().lower().replace("_", "-")
    return OTHER_NAMES.get(plain, plain)


ALONE = "ulysses"
"""A strategy that computes as one device does on one rank, for published cases without any."""
TENSOR, IN_GROUPS = "megatron-tp", "megatron-sp"
"""Strategies that cut weights, over all ranks and in groups across which another attends."""
MERGING = "ring"
"""The strategy that merges results of blocks of keys."""
GATHERING = "kv-gather"
"""A strategy that gathers keys first; a published one may then go block by block, and merge."""
UNBALANCED = f"{MERGING}:unbalanced"
"""A published ring whose causal shards are contiguous, so that its last rank has the most."""


GROUP = "spbench.strategies"


class BrokenPlugInError(Failure, ValueError):
    """A plug-in whose strategy cannot be loaded; the message says which, and why."""


def plug_ins() -> dict[str, str]:
    """``module:class`` by the strategy's name, but for built-in names. Loads nothing."""
    points = entry_points(group=GROUP)
    own = BUILT_IN | VENDORS
    return {point.name: point.value for point in points if point.name not in own}


def class_of(name: str, path: str) -> type[Strategy]:
    """The class of a plug-in. Imports torch. Raises BrokenPlugInError."""
    try:
        return class_at(path)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise  # no strategy can be loaded
        raise BrokenPlugInError(
            f"the plug-in strategy {name!r} ({path}) cannot be loaded: {type(error).__name__}: "
            f"{first_line(error)}; mend its package, or uninstall it"
        ) from error


def class_at(path: str) -> type[Strategy]:
    """The class at ``module:class``. Imports torch. Raises whatever the module does."""
    module, _, attribute = path.partition(":")
    if not attribute:
        raise TypeError(f"{path!r} names no class; write module:Class")
    from spbench.strategies.base import Strategy

    kind: type[Strategy] = getattr(import_module(module), attribute)
    if not isinstance(kind(), Strategy):
        raise TypeError(f"{attribute} is not a Strategy")
    return kind


def broken_plug_ins() -> dict[str, str]:
    """Why plug-ins cannot be loaded, by the names of those that cannot, which ``all`` leaves out.
    Imports all of them; without torch none counts as broken."""
    reasons = {}
    for name, path in plug_ins().items():
        try:
            class_of(name, path)
        except BrokenPlugInError as error:
            reasons[name] = str(error)
        except ModuleNotFoundError:
            break
    return reasons


ACROSS = ("ring", "kv-gather", "attention-2d")
"""Names of strategies that may attend across groups of ranks that share heads."""
EXCHANGES = ("ulysses", *ACROSS, "usp")
"""Names of strategies that may attend to all axes joined, or across groups that cut weights."""
WHOLE = ("ulysses", "ring", "kv-gather")
"""Names of strategies that may serve attentions without a window beside those with one."""
CUTS = "megatron-sp"
"""The name of the strategy by which groups of neighbours cut weights, whatever goes across them."""


class UnknownStrategyError(Failure, ValueError):
    """A name or an option of a strategy that does not exist, or a value that it does not take."""


def places() -> dict[str, str]:
    """``module:class`` of each strategy whose transfers pass ``comm/``, the built-in ones first."""
    return BUILT_IN | plug_ins()


def named() -> dict[str, str]:
    """``module:class`` of all that has a name: ``places``, and the adapters of vendors."""
    return BUILT_IN | VENDORS | plug_ins()


def check_name(text: str) -> None:
    """Raises UnknownStrategyError unless the name before the options is known. Loads nothing."""
    from spbench.workload.yaml_file import short  # its pydantic stays out of completion

    name = text.split(":", maxsplit=1)[0]
    if name in BUILT_IN or name in VENDORS or name in (own := places()):
        return  # plug-ins are looked for on disk, last
    raise UnknownStrategyError(
        f"unknown strategy {short(name)}. {_near(own_name(name), [*own, *VENDORS, 'vendors'])}"
        f"The strategies are {', '.join(own)}, and those of other packages that 'spbench list "
        "strategies' shows"
    )


def module_of(text: str) -> str:
    """The module of the strategy that ``text`` names, options or not. Loads nothing."""
    check_name(text)
    return named()[text.partition(":")[0]].partition(":")[0]


def _near(word: str, words: Sequence[str]) -> str:
    """'Did you mean ...? ' with a space behind, or nothing."""
    return f"{did_you_mean(word, words, cutoff=0.5)} ".lstrip()


def expand_names(texts: Sequence[str]) -> list[str]:
    """Names from texts such as ``dsp,rsa``, ``all`` and ``vendors``, each once, in order. Raises
    UnknownStrategyError. Loads no built-in strategy, and plug-ins only for ``all``."""
    names: dict[str, None] = {}
    several: Mapping[str, Callable[[], list[str]]] = {"all": _sound, "vendors": lambda: [*VENDORS]}
    for text in (part.strip() for group in texts for part in group.split(",")):
        head, _, option = text.partition(":")
        if option and head in several:
            raise UnknownStrategyError(
                f"{head!r} stands for several strategies, of which not all have {option!r}; name "
                f"those that are meant, as in -s ring:{option}"
            )
        for name in several[text]() if text in several else [text]:
            check_name(name)
            names[name] = None
    return list(names)


def _sound() -> list[str]:
    left_out = broken_plug_ins()
    return [name for name in places() if name not in left_out]


def load(text: str) -> Strategy:
    """The strategy that ``text`` names, with its options. Imports torch. Raises
    UnknownStrategyError, and BrokenPlugInError for a plug-in that cannot be loaded."""
    check_name(text)
    name, *settings = text.split(":")
    own = BUILT_IN | VENDORS
    kind = class_at(own[name]) if name in own else class_of(name, named()[name])
    takes = {field.name.replace("_", "-"): field for field in fields(kind)}
    options: dict[str, Any] = {}
    for setting in settings:
        option, given, value = setting.partition("=")
        if option not in takes:
            offered = f"Its options are {', '.join(takes)}" if takes else "It has no options"
            raise UnknownStrategyError(
                f"strategy {name!r} has no option {option!r}. {_near(option, list(takes))}{offered}"
            )
        field = takes[option]
        options[field.name] = _parse(name, option, value if given else None, field.default)
    return kind(**options)


def forms_of(names: Sequence[str]) -> list[str]:
    """The strategies of these names with the options that each says people run it with. Imports
    torch. Raises as ``load`` does."""
    return [f"{name}:{form}" for name in names for form in load(name).forms]


def exchange(name: str, **options: str) -> FixedAxis:
    """The strategy that exchanges in another's path, one of ``EXCHANGES``, with its options.

    Here alone a strategy comes by another one. Options that are left ``auto`` need not be known to
    it. Imports torch. Raises as ``load`` does.
    """
    given = (
        f"{option.replace('_', '-')}={value}"
        for option, value in options.items()
        if value != "auto"
    )
    return cast("FixedAxis", load(":".join([name, *given])))


def in_mesh(text: str, mesh: CaseMesh) -> Strategy:
    """The strategy of a case: as ``load``, in groups of ranks where its mesh has several."""
    from spbench.strategies.pipeline import Pipeline
    from spbench.strategies.sample_groups import SampleGroups
    from spbench.strategies.tensor_groups import TensorGroups
    from spbench.workload.mesh import DP, PP, TP, CaseMesh

    strategy = load(text)

    def kind_of(axis: tuple[str, int]) -> str:
        return axis[0] if axis[0] in (PP, TP) else DP

    # From the innermost axis on; those of samples that lie side by side are one kind of groups.
    for kind, axes in groupby(reversed(mesh.axes), kind_of):
        sizes = dict(reversed(list(axes)))
        if kind == TP:
            strategy = TensorGroups(own=strategy, tp=sizes[TP], cuts=load(CUTS))
        elif kind == PP:
            strategy = Pipeline(own=strategy, pp=sizes[PP])
        else:
            strategy = SampleGroups(own=strategy, around=CaseMesh.model_validate(sizes))
    return strategy


def meshed(text: str) -> Strategy:
    """The strategy of a name with its mesh, as the column ``strategy`` has it: ulysses dp=2 tp=2.
    Imports torch. Raises as ``load`` does, and ValueError where that is no mesh."""
    from spbench.workload.mesh import CaseMesh

    return in_mesh(*CaseMesh.split(text))


FLAGS: Mapping[str | None, bool] = {None: True, "true": True, "false": False}


def _parse(name: str, option: str, value: str | None, default: Any) -> Any:
    """``value`` as the type of the option's default; a bare option means true."""
    if isinstance(default, bool):
        if value in FLAGS:
            return FLAGS[value]
        raise UnknownStrategyError(
            f"{name}:{option}={value}: a flag; write {option}, or =true, =false"
        )
    if not value:
        raise UnknownStrategyError(f"{name}:{option} needs a value: {name}:{option}={default}")
    try:
        return type(default)(value)
    except ValueError:
        kind = {int: "a whole number", float: "a number"}.get(type(default), type(default).__name__)
        raise UnknownStrategyError(f"{name}:{option}={value}: needs {kind}") from None
