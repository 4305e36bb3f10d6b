"""A ``config.json`` of Hugging Face's classes as the YAML file of a workload.

What the model is comes from the file; what it does not say (pixels, frames, text tokens, batch,
how a step is run) is the catalogue's, and a comment beside it says so. Above stand the parameters:
the model's, the workload's, and what the difference is.
"""

import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from spbench.text import did_you_mean, listed
from spbench.workload.block import PARTS
from spbench.workload.diffusion_models import DIFFUSION_MODELS
from spbench.workload.flops import condition_parameters, parameters
from spbench.workload.language_models import LANGUAGE_MODELS
from spbench.workload.model_config import BY_HAND, Config, Model
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import WorkloadError, YamlData, short, validated

MAX_BYTES = 1_000_000
MAX_COLUMNS = 100
PLACES = ("config.json", "transformer/config.json")
"""Where a folder has the file: a model's own, or a pipeline's."""
RUN: Mapping[str, Any] = {
    **{"batch": 1, "dtype": "bfloat16", "mode": "train", "checkpointing": "full"}
}
"""Fields of how a model is run, as the catalogue has them."""
OURS = {
    "batch": "not in the config: samples of a step, over all ranks together",
    "mode": "not in the config: or forward, as sampling is",
    "checkpointing": "not in the config: or none, where backward computes nothing again",
}
"""Comments at fields that no file holds."""
APART = "condition projected for each block, where here blocks of a kind share it"
REST = "norms, biases, vectors and the last projection, where they differ"


@dataclass(frozen=True, kw_only=True)
class Described:
    """A workload made of a ``config.json``, as the text of its file."""

    text: str
    workload: Workload
    total: int
    """Parameters of the whole model; those of the workload are ``flops.parameters``."""
    left_out: Mapping[str, int]
    """Parameters that make up the difference, by what they are; below 0 where the workload has
    more than the model. Their sum and the workload's are ``total``."""


def describe(source: Path, name: str) -> Described:
    """The workload of a ``config.json``, or of a folder that has one, under this name.

    Raises WorkloadError for what is no such file, for architectures that are not known, and for
    values that no workload can say.
    """
    path = _file(source)
    data = _read(path)
    config, read, library = _architecture(data, path)
    model = read(config)
    sentence = f"config.json of {config.architecture} ({library}), {model.total:,} parameters"
    head = {"version": 1, "name": name, "source": sentence}
    guidance = {"guidance": 1} if "guidance" in model.comments else {}
    values = dict(RUN) | guidance | dict(model.fields)
    order = [key for key in Workload.model_fields if key in values]
    fields = head | {key: values[key] for key in order}
    workload = validated(Workload, YamlData(value=fields, where=str(path)), PARTS)
    left_out = _left_out(model, workload)
    comments = OURS | dict(model.comments)
    comments |= {} if "dtype" in model.fields else {"dtype": "not in the config"}
    top = _top(config.architecture, model, workload, left_out)
    text = "\n".join([*top, *_lines(fields, comments), ""])
    return Described(text=text, workload=workload, total=model.total, left_out=left_out)


# The file


def _file(source: Path) -> Path:
    """The file itself, or the one in a folder of a model or of a pipeline."""
    if not source.is_dir():
        return source
    for place in PLACES:
        if (source / place).is_file():
            return source / place
    raise WorkloadError(f"{source}: a folder without {' or '.join(PLACES)}; give such a file")


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        near = did_you_mean(path.name, [other.name for other in path.parent.glob("*.json")])
        raise WorkloadError(f"{path}: {error.strerror}{near and f'. {near}'}") from None
    except ValueError:  # NUL, or what no file system can encode
        raise WorkloadError(f"{str(path)!a}: not the name of a file") from None
    if len(raw) > MAX_BYTES:
        raise WorkloadError(f"{path}: too large; a config.json is at most {MAX_BYTES:,} bytes")
    try:
        data = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise WorkloadError(f"{path}: not UTF-8 text; a config.json is JSON") from None
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits; endless nesting
        raise WorkloadError(f"{path}: not JSON that can be read; give a config.json") from None
    if not isinstance(data, dict):
        message = f"holds a {type(data).__name__}; a config.json holds keys in braces"
        raise WorkloadError(f"{path}: {message}")
    return data


def _architecture(
    data: Mapping[str, Any], path: Path
) -> tuple[Config, Callable[[Config], Model], str]:
    """The keys of the file, who reads them, and the library whose class wrote them."""
    name, kind = data.get("_class_name"), data.get("model_type")
    if isinstance(name, str) and name in DIFFUSION_MODELS:
        return Config(data, str(path), name), DIFFUSION_MODELS[name], "diffusers"
    names = data.get("architectures")
    first = names[0] if isinstance(names, list) and names else kind
    # It stands in the comment above the workload, where nothing may end a line.
    word = first if isinstance(first, str) and first.isidentifier() else kind
    if isinstance(kind, str) and kind in LANGUAGE_MODELS:
        return Config(data, str(path), str(word)), LANGUAGE_MODELS[kind], "transformers"
    if "transformer" in data or (isinstance(name, str) and name.endswith("Pipeline")):
        raise WorkloadError(
            f"{path}: the index of a pipeline ({short(name)}), which has no sizes; give the "
            f"config.json of its transformer, as in {path.parent / 'transformer' / 'config.json'}"
        )
    if name is None and kind is None:
        raise WorkloadError(
            f"{path}: neither _class_name (diffusers) nor model_type (transformers) says which "
            f"architecture it is; give the config.json of a model, or {BY_HAND}"
        )
    found = name or first
    known = [*DIFFUSION_MODELS, *LANGUAGE_MODELS]
    near = did_you_mean(str(found), known, cutoff=0.95)
    raise WorkloadError(
        f"{path}: architecture {short(found)} is not known.{near and f' {near}'} Known are "
        f"{listed(known)}. For others {BY_HAND}"
    )


# Parameters


def _left_out(model: Model, workload: Workload) -> dict[str, int]:
    """What makes up the difference between the model's and the workload's parameters."""
    shared = condition_parameters(workload)
    left_out = dict(model.left_out)
    # Not all models project the condition; one projection for all is what is here, too.
    if model.conditions != shared and shared:
        left_out[APART] = model.conditions - shared
    rest = model.total - parameters(workload).total - sum(left_out.values())
    return {what: count for what, count in {**left_out, REST: rest}.items() if count}


def _top(
    architecture: str, model: Model, workload: Workload, left_out: Mapping[str, int]
) -> list[str]:
    """The comment above the workload."""
    counts = {
        "in the model": f"{model.total:,}",
        "in this workload": f"{parameters(workload).total:,}",
        **{what: f"{count:+,}" for what, count in left_out.items()},
    }
    width = max(map(len, counts.values()))
    said = (
        f"Made of the config.json of {architecture}. What that does not say is marked "
        "'not in the config', and yours to change. Look before anything runs: spbench show, or "
        "spbench run --dry-run, with this file."
    )
    rows = [f"  {count:>{width}}  {what}" for what, count in counts.items()]
    differs = [line for sentence in model.differs for line in _comment(sentence)]
    return [*_comment(said), *differs, "# Parameters:", *(f"#{row}" for row in rows)]


# The text


def _lines(fields: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    lines: list[str] = []
    for key, value in fields.items():
        rows = _rows(key, value)
        comment = comments.get(key, "")
        beside = f"{rows[0]}   # {comment}"
        if comment and len(beside) <= MAX_COLUMNS:
            rows[0] = beside
        elif comment:
            lines += _comment(comment)
        lines += rows
    return lines


def _rows(key: str, value: Any) -> list[str]:
    """A field as the catalogue's files have it: sublayers in lines of their own."""
    if key == "block":
        return ["block:", *(f"  - {_item(sublayer)}" for sublayer in value)]
    if key == "stacks":
        rows = ["stacks:"]
        for stack in value:
            rows += [f"  - depth: {stack['depth']}", "    block:"]
            rows += [f"      - {_item(sublayer)}" for sublayer in stack["block"]]
        return rows
    return [f"{key}: {_flow(value)}"]


def _item(sublayer: Mapping[str, Any]) -> str:
    """A sublayer; one of a single key without braces."""
    text = _flow(sublayer)
    return text if len(sublayer) > 1 else text.removeprefix("{").removesuffix("}")


def _flow(value: Any) -> str:
    """A value in one line."""
    return (
        yaml.safe_dump(
            value, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True
        )
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, MAX_COLUMNS - 2, break_on_hyphens=False)]
