"""Diffusion transformers of diffusers: what each ``config.json`` says, in the fields of a workload.

One function a class. It turns keys of the file into fields, counts the parameters of the whole
class, and names what a workload leaves out. Pixels, frames and text tokens, which no file holds,
are those of the catalogue. Parameters are those of diffusers 0.42.1, exactly.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from spbench.workload.fields import ACROSS_HEADS
from spbench.workload.model_config import Config, Model, embedder, linear, mlp, mlp_ratio

TIME_CHANNELS = 256
"""Sines and cosines of a time step, before the model's own projections."""
QK_NORMS: Mapping[str | None, bool | str] = {
    **dict.fromkeys(("rms_norm", "layer_norm"), True),
    **{"rms_norm_across_heads": ACROSS_HEADS, None: False},
}
"""Norms of queries and keys, by diffusers' word."""
PLAIN = ("gelu", "gelu-approximate")
"""Activations of an mlp with two products."""
EMBEDDINGS = "embeddings of time, text and the latent"
REFINERS = "refiner blocks and what leads into them"
FINAL_CONDITION = "condition of the final norm"
CROSS_NORMS = "norms of queries and keys in cross-attention"
NO_CROSS_NORMS = "Its cross-attention norms queries and keys, here it does not."
NO_BIASES = "Its projections have no biases, here they have."
TEXT = "not in the config: tokens of the prompt"
TWO_BRANCHES = "not in the config: guidance: 2 with mode: forward is sampling with two branches"
DISTILLED = "guidance_embeds: it takes guidance as a number, in one branch"


# Fields and parameters that several share


def heads_of(config: Config) -> tuple[int, int, int]:
    """Heads, numbers of each, and the hidden size that both make."""
    heads, head_dim = config.size("num_attention_heads"), config.size("attention_head_dim")
    return heads, head_dim, heads * head_dim


def picture(width: int, height: int, cell: int) -> tuple[dict[str, int], str]:
    """The axes of a picture whose tokens have sides of ``cell`` pixels, and how they follow."""
    rule = f"height and width are pixels / {cell}"
    axes = {"height": max(1, height // cell), "width": max(1, width // cell)}
    return axes, f"not in the config: {width} x {height} pixels; {rule}"


def film(
    width: int, height: int, frames: int, *, cell: int, stride: int = 4, joined: int = 1
) -> tuple[dict[str, int], str]:
    """The axes of a film, and how they follow from its pixels and frames.

    Behind the first one, each ``stride`` frames are a latent frame; ``joined`` of these are one
    token's, the last ones filled up.
    """
    plane, _ = picture(width, height, cell)
    latents = 1 + (frames - 1) // stride
    axes = {"time": -(-latents // joined), **plane}
    rule = f"1 + (frames - 1) / {stride}" + (f", over {joined}, rounded up" if joined > 1 else "")
    said = f"not in the config: {width} x {height} pixels and {frames} frames; "
    return axes, f"{said}time is {rule}, height and width are pixels / {cell}"


def usual(**fields: Any) -> dict[str, Any]:
    """Fields with what most diffusion transformers have."""
    return {"qk_norm": True, "positions": "rotary", "modulation": "per_sample"} | fields


def of_mlp(columns: int, hidden: int, activation: str = "gelu") -> dict[str, Any]:
    """An mlp of a workload."""
    gate = {} if activation == "gelu" else {"activation": activation}
    return {"mlp": mlp_ratio(columns, hidden), **gate}


def double(axes: Mapping[str, int], plain: Mapping[str, Any]) -> list[Any]:
    """The block of MM-DiT: text has weights of its own in a common attention."""
    return [{"attention": [*axes], "double": True}, {**plain, "double": True}]


def crossing(axes: Mapping[str, int], length: int, plain: Mapping[str, Any]) -> list[Any]:
    """A block with text in a cross-attention."""
    return [{"attention": [*axes]}, {"cross_attention": length}, dict(plain)]


def stacked(
    depths: tuple[int, int], axes: Mapping[str, int], plain: Mapping[str, Any]
) -> dict[str, Any]:
    """Blocks of two streams and, where there are some, blocks of one with the mlp beside."""
    first = {"depth": depths[0], "block": double(axes, plain)}
    if not depths[1]:
        return first
    block = [{"attention": [*axes], "beside": dict(plain)}]
    return {"stacks": [first, {"depth": depths[1], "block": block}]}


def streams(depths: tuple[int, int], hidden: int, head_dim: int, columns: int) -> int:
    """Parameters of such blocks without their modulation."""
    two = 8 * linear(hidden, hidden) + 4 * head_dim + 2 * mlp(hidden, columns)
    one = 3 * linear(hidden, hidden) + linear(hidden, columns) + linear(hidden + columns, hidden)
    return depths[0] * two + depths[1] * (one + 2 * head_dim)


def modulation(depths: tuple[int, int], hidden: int) -> int:
    """Parameters of their modulation: 6 vectors of each stream, and 3 where the mlp is beside."""
    return depths[0] * 2 * linear(hidden, 6 * hidden) + depths[1] * linear(hidden, 3 * hidden)


# Text in a cross-attention


def wan(config: Config) -> Model:
    """Wan 2.1 and 2.2. Whatever ``qk_norm`` says, the class norms across heads."""
    heads, _, hidden = heads_of(config)
    depth, columns = config.size("num_layers"), config.size("ffn_dim")
    patch, channels = config.sizes("patch_size", 3, [1, 2, 2]), config.size("in_channels")
    is_ti2v = channels >= 48  # Wan 2.2's own autoencoder, of 16 x 16 pixels
    size = (1280, 704, 121) if is_ti2v else (1280, 720, 81)
    if hidden <= 1536:
        size = (832, 480, 81)
    cell = (16 if is_ti2v else 8) * patch[2]
    axes, comment = film(*size, cell=cell, joined=patch[0])
    cells = math.prod(patch)
    embedded = embedder(config.size("freq_dim", default=TIME_CHANNELS), hidden)
    embedded += embedder(config.size("text_dim"), hidden) + linear(cells * channels, hidden)
    block = 6 * hidden + 8 * linear(hidden, hidden) + 2 * hidden + mlp(hidden, columns)
    block += 2 * hidden if config.flag("cross_attn_norm", default=True) else 0
    left_out = {EMBEDDINGS: embedded, CROSS_NORMS: 2 * depth * hidden}
    comments = {"axes": comment, "block": "not in the config: 512 text tokens"}
    length = 512
    if config.has("added_kv_proj_dim"):
        length += 257
        comments["block"] += ", and 257 of an image"
        left_out["embedding, keys and values of an image"] = _image_of_wan(config, hidden, depth)
    if is_ti2v:
        comments["modulation"] = "as ti2v, which sets the time of the first frame to 0"
    conditions = linear(hidden, 6 * hidden)
    out = 2 * hidden + linear(hidden, cells * config.size("out_channels", default=channels))
    return Model(
        fields=usual(
            axes=axes,
            hidden=hidden,
            heads=heads,
            depth=depth,
            block=crossing(axes, length, of_mlp(columns, hidden)),
            qk_norm=ACROSS_HEADS,
            modulation="per_token" if is_ti2v else "per_sample",
        ),
        total=depth * block + conditions + out + sum(left_out.values()),
        conditions=conditions,
        left_out=left_out,
        comments={**comments, "guidance": TWO_BRANCHES},
        differs=[NO_CROSS_NORMS],
    )


def _image_of_wan(config: Config, hidden: int, depth: int) -> int:
    """Parameters that embed an image, and that make keys and values of it in each block."""
    width = config.size("image_dim")
    embedded = 2 * width + linear(width, width) + linear(width, hidden) + 2 * hidden
    embedded += config.count("pos_embed_seq_len") * width
    return embedded + depth * (2 * linear(config.size("added_kv_proj_dim"), hidden) + hidden)


def ltx(config: Config) -> Model:
    """LTX-Video."""
    return _ltx(config, film(768, 512, 121, cell=32, stride=8), text=128)


def ltx_2(config: Config) -> Model:
    """LTX-2 and 2.3: a stream of audio beside the video, and attention between the two."""
    video = _ltx(config, film(1920, 1088, 121, cell=32, stride=8), text=1024)
    axes, depth = video.fields["axes"], video.fields["depth"]
    heads, hidden = config.size("audio_num_attention_heads"), video.fields["hidden"]
    size = config.size("audio_attention_head_dim")
    wide, (own, left_out) = heads * size, _audio(config, hidden)
    attention, cross, plain = crossing(axes, 1024, video.fields["block"][-1])
    of_audio = {"stream": "audio"}
    block = [
        *(attention, {"attention": "audio"}, cross, cross | of_audio),
        {"cross_attention": "audio", "heads": heads, "head_dim": size},
        *({"cross_attention": "axes"} | of_audio, plain, plain | of_audio),
    ]
    streams = {"audio": {"length": AUDIO_TOKENS, "hidden": wide, "heads": heads}}
    differs = [
        *video.differs,
        "The attention between the streams has neither norms of queries "
        "and keys nor positions nor vectors of the condition here.",
    ]
    differs += [
        f"What {key} adds, below 1 % of the parameters, is not counted."
        for key in ("gated_attn", "cross_attn_mod")
        if config.flag(key)
    ]
    conditions = linear(wide, 6 * wide)
    kept = {**video.left_out}
    for what, count in left_out.items():
        kept[what] = kept.get(what, 0) + count
    return Model(
        fields={**video.fields, "streams": streams, "block": block},
        total=video.total + depth * own + conditions + sum(left_out.values()),
        conditions=video.conditions + conditions,
        left_out=kept,
        comments={**video.comments, "streams": AUDIO_OF},
        differs=differs,
    )


AUDIO_TOKENS = 126
AUDIO_OF = "not in the config: 25 tokens of audio a second, of 121 frames at 24 a second"


def _ltx(config: Config, axes_and_comment: tuple[dict[str, int], str], text: int) -> Model:
    """The video of both."""
    axes, comment = axes_and_comment
    heads, _, hidden = heads_of(config)
    depth, channels = config.size("num_layers"), config.size("in_channels")
    config.one_of("activation_fn", PLAIN, "gelu-approximate")
    embedded = embedder(TIME_CHANNELS, hidden) + linear(channels, hidden)
    if config.flag("use_prompt_embeddings", default=True):
        embedded += embedder(config.size("caption_channels"), hidden)
    left_out = {EMBEDDINGS: embedded, CROSS_NORMS: 2 * depth * hidden}
    conditions = linear(hidden, 6 * hidden)
    out = 2 * hidden + linear(hidden, config.size("out_channels", default=channels))
    return Model(
        fields=usual(
            axes=axes,
            hidden=hidden,
            heads=heads,
            depth=depth,
            block=crossing(axes, text, of_mlp(4 * hidden, hidden)),
            norm="rms",
            qk_norm=ACROSS_HEADS,
            modulation="per_token",
        ),
        total=depth * _of_block(hidden) + conditions + out + sum(left_out.values()),
        conditions=conditions,
        left_out=left_out,
        comments={
            **{"axes": comment, "block": f"not in the config: {text} text tokens"},
            "guidance": TWO_BRANCHES,
        },
        differs=[NO_CROSS_NORMS],
    )


def _of_block(hidden: int) -> int:
    """Parameters of one stream's block, but the norms of its cross-attention."""
    return 6 * hidden + 8 * linear(hidden, hidden) + 2 * hidden + mlp(hidden, 4 * hidden)


def _audio(config: Config, hidden: int) -> tuple[int, dict[str, int]]:
    """Parameters of a block that are audio's or lead from stream to stream, and what a workload
    leaves out of all blocks and around them."""
    wide = config.size("audio_num_attention_heads") * config.size("audio_attention_head_dim")
    channels, depth = config.size("audio_in_channels"), config.size("num_layers")
    embedded = linear(channels, wide) + embedder(TIME_CHANNELS, wide)
    if config.flag("use_prompt_embeddings", default=True):
        embedded += embedder(config.size("caption_channels"), wide)
    out = 2 * wide + linear(wide, config.size("audio_out_channels", "audio_in_channels"))
    # The attention between the two has shifts and scales, and gates, of each; and norms of
    # queries and keys.
    vectors = depth * (5 * (hidden + wide) + 4 * wide)
    for size in (hidden, wide):
        vectors += 2 * embedder(TIME_CHANNELS, size) + linear(size, 4 * size) + linear(size, size)
    into_video = linear(hidden, wide) + 2 * linear(wide, wide) + linear(wide, hidden)
    into_audio = 2 * linear(hidden, wide) + 2 * linear(wide, wide)
    left_out = {
        EMBEDDINGS: embedded,
        CROSS_NORMS: 2 * depth * wide,
        "vectors of the condition, and norms, of attention between the streams": vectors,
        "projection out of the audio": out,
    }
    return _of_block(wide) + into_video + into_audio, left_out


# Text with weights of its own


def flux(config: Config) -> Model:
    """FLUX.1: blocks of two streams, then blocks of one."""
    heads, head_dim, hidden = heads_of(config)
    depths = config.size("num_layers"), config.count("num_single_layers")
    channels, side = config.size("in_channels"), config.size("patch_size", default=1)
    is_distilled = config.flag("guidance_embeds")
    axes, comment = picture(2048, 2048, cell=16 * side)
    embedded = (2 if is_distilled else 1) * embedder(TIME_CHANNELS, hidden)
    embedded += embedder(config.size("pooled_projection_dim"), hidden)
    embedded += linear(config.size("joint_attention_dim"), hidden) + linear(channels, hidden)
    final, conditions = linear(hidden, 2 * hidden), modulation(depths, hidden)
    out = linear(hidden, side**2 * config.size("out_channels", default=channels))
    blocks = streams(depths, hidden, head_dim, 4 * hidden)
    text = 512 if is_distilled else 256
    return Model(
        fields=usual(axes=axes, hidden=hidden, heads=heads, text=text)
        | stacked(depths, axes, of_mlp(4 * hidden, hidden)),
        total=blocks + conditions + embedded + final + out,
        conditions=conditions,
        left_out={EMBEDDINGS: embedded, FINAL_CONDITION: final},
        comments={
            **{"axes": comment, "text": TEXT},
            "guidance": DISTILLED if is_distilled else "not in the config: schnell has one branch",
        },
    )


def flux_2(config: Config) -> Model:
    """FLUX.2: as FLUX.1, without biases, and with one modulation for all blocks of a kind."""
    heads, head_dim, hidden = heads_of(config)
    depths = config.size("num_layers"), config.count("num_single_layers")
    channels, side = config.size("in_channels"), config.size("patch_size", default=1)
    is_distilled = config.flag("guidance_embeds", default=True)
    columns = int(hidden * config.ratio("mlp_ratio", 3.0))
    axes, comment = picture(1024, 1024, cell=16 * side)
    times = config.size("timestep_guidance_channels", default=TIME_CHANNELS)
    embedded = (2 if is_distilled else 1) * embedder(times, hidden, bias=False)
    embedded += hidden * (config.size("joint_attention_dim") + channels)
    # An mlp has two projections in and one out.
    blocks = depths[0] * (8 * hidden**2 + 4 * head_dim + 2 * 3 * hidden * columns)
    blocks += depths[1] * (4 * hidden**2 + 2 * head_dim + 3 * hidden * columns)
    final, conditions = 2 * hidden**2, (2 * 6 + 3) * hidden**2
    out = hidden * side**2 * config.size("out_channels", default=channels)
    return Model(
        fields=usual(axes=axes, hidden=hidden, heads=heads, text=512, batch=2)
        | stacked(depths, axes, of_mlp(columns, hidden, "swiglu")),
        total=blocks + conditions + embedded + final + out,
        conditions=conditions,
        left_out={EMBEDDINGS: embedded, FINAL_CONDITION: final},
        comments={
            **{"axes": comment, "text": TEXT},
            "guidance": DISTILLED if is_distilled else TWO_BRANCHES,
        },
        differs=[NO_BIASES],
    )


def qwen_image(config: Config) -> Model:
    """Qwen-Image and its editing forms: blocks of two streams."""
    heads, head_dim, hidden = heads_of(config)
    depths, channels = (config.size("num_layers"), 0), config.size("in_channels")
    side, text = config.size("patch_size", default=2), config.size("joint_attention_dim")
    axes, comment = picture(1328, 1328, cell=8 * side)
    embedded = embedder(TIME_CHANNELS, hidden) + linear(channels, hidden)
    embedded += text + linear(text, hidden)
    embedded += 2 * hidden if config.flag("use_additional_t_cond") else 0
    final, conditions = linear(hidden, 2 * hidden), modulation(depths, hidden)
    out = linear(hidden, side**2 * config.size("out_channels"))
    blocks = streams(depths, hidden, head_dim, 4 * hidden)
    return Model(
        fields=usual(axes=axes, hidden=hidden, heads=heads, text=1024, batch=2)
        | stacked(depths, axes, of_mlp(4 * hidden, hidden)),
        total=blocks + conditions + embedded + final + out,
        conditions=conditions,
        left_out={EMBEDDINGS: embedded, FINAL_CONDITION: final},
        comments={"axes": comment, "text": f"{TEXT}, here its most", "guidance": TWO_BRANCHES},
    )


def hunyuan_video(config: Config) -> Model:
    """HunyuanVideo: blocks of two streams, then blocks of one."""
    *_, hidden = heads_of(config)
    side, time = config.size("patch_size"), config.size("patch_size_t")
    is_distilled = config.flag("guidance_embeds")
    embedded = (2 if is_distilled else 1) * embedder(TIME_CHANNELS, hidden)
    embedded += embedder(config.size("pooled_projection_dim"), hidden)
    axes, comment = film(1280, 720, 129, cell=8 * side, joined=time)
    guidance = DISTILLED if is_distilled else TWO_BRANCHES
    return _hunyuan(
        config,
        usual(axes=axes, text=256),
        {"axes": comment, "text": TEXT, "guidance": guidance},
        embedded=embedded,
        cells=time * side**2,
    )


def hunyuan_video_15(config: Config) -> Model:
    """HunyuanVideo 1.5: blocks of two streams; prompt, glyphs and an image are the second one."""
    *_, hidden = heads_of(config)
    side, time = config.size("patch_size"), config.size("patch_size_t")
    image = config.size("image_embed_dim")
    embedded = (2 if config.flag("use_meanflow") else 1) * embedder(TIME_CHANNELS, hidden)
    embedded += 2 * image + linear(image, image) + linear(image, hidden) + 2 * hidden
    embedded += _glyphs(config, hidden) + 3 * hidden
    axes, comment = film(1280, 720, 121, cell=16 * side, joined=time)
    text = "not in the config: at most 1000 of the prompt, 256 of glyphs and 729 of an image"
    return _hunyuan(
        config,
        usual(axes=axes, text=1000 + 256 + 729),
        {"axes": comment, "text": text, "guidance": TWO_BRANCHES},
        embedded=embedded,
        cells=time * side**2,
    )


def hunyuan_image(config: Config) -> Model:
    """HunyuanImage 2.1: as HunyuanVideo, without time."""
    *_, hidden = heads_of(config)
    sides = config.sizes("patch_size", 2, [1, 1])
    embedded, text = embedder(TIME_CHANNELS, hidden), 1000
    for key in ("guidance_embeds", "use_meanflow"):
        embedded += embedder(TIME_CHANNELS, hidden) if config.flag(key) else 0
    if config.has("text_embed_2_dim"):
        embedded, text = embedded + _glyphs(config, hidden), text + 128
    axes, comment = picture(2048, 2048, cell=32 * sides[1])
    guidance = DISTILLED if config.flag("guidance_embeds") else TWO_BRANCHES
    return _hunyuan(
        config,
        usual(axes=axes, text=text),
        {"axes": comment, "text": f"{TEXT}, at most", "guidance": guidance},
        embedded=embedded,
        cells=math.prod(sides),
    )


def _glyphs(config: Config, hidden: int) -> int:
    """Parameters that project the bytes of glyphs, 2048 wide in between."""
    inputs = config.size("text_embed_2_dim")
    return 2 * inputs + linear(inputs, 2048) + linear(2048, 2048) + linear(2048, hidden)


def _hunyuan(
    config: Config,
    fields: Mapping[str, Any],
    comments: Mapping[str, str],
    *,
    embedded: int,
    cells: int,
) -> Model:
    """The family. ``embedded``: parameters of what each embeds in its way; ``cells``: places of the
    latent in a token."""
    heads, head_dim, hidden = heads_of(config)
    depths = config.size("num_layers"), config.count("num_single_layers")
    columns = int(hidden * config.ratio("mlp_ratio", 4.0))
    channels, text = config.size("in_channels"), config.size("text_embed_dim")
    embedded += linear(cells * channels, hidden)
    refiner = 4 * hidden + 4 * linear(hidden, hidden) + mlp(hidden, 4 * hidden)
    refiners = config.count("num_refiner_layers") * (refiner + linear(hidden, 2 * hidden))
    refiners += embedder(TIME_CHANNELS, hidden) + embedder(text, hidden) + linear(text, hidden)
    final, conditions = linear(hidden, 2 * hidden), modulation(depths, hidden)
    out = linear(hidden, cells * config.size("out_channels", default=channels))
    blocks = streams(depths, hidden, head_dim, columns)
    qk_norm = QK_NORMS[config.one_of("qk_norm", ("rms_norm", "layer_norm"), "rms_norm")]
    sizes = {"hidden": hidden, "heads": heads, "qk_norm": qk_norm}
    return Model(
        fields={**fields, **sizes, **stacked(depths, fields["axes"], of_mlp(columns, hidden))},
        total=blocks + conditions + embedded + refiners + final + out,
        conditions=conditions,
        left_out={EMBEDDINGS: embedded, REFINERS: refiners, FINAL_CONDITION: final},
        comments=comments,
    )


def mochi(config: Config) -> Model:
    """Mochi 1: blocks of two streams, of which text's is narrower; here both are as wide."""
    heads, head_dim, hidden = heads_of(config)
    depth, channels = config.size("num_layers"), config.size("in_channels")
    side, narrow = config.size("patch_size"), config.size("pooled_projection_dim")
    text = config.size("text_embed_dim")
    columns, text_columns = 8 * hidden // 3, 8 * narrow // 3
    axes, comment = film(848, 480, 163, cell=8 * side, stride=6)
    own = 3 * hidden**2 + linear(hidden, hidden) + 3 * hidden * columns + 2 * head_dim
    out_of_text = linear(hidden, narrow) + 3 * narrow * text_columns
    texts = 3 * narrow * hidden + 2 * head_dim
    # The last block projects no text out, and norms it by a scale alone.
    vectors = linear(hidden, 4 * hidden) + linear(hidden, 4 * narrow)
    conditions = depth * vectors - linear(hidden, 4 * narrow) + linear(hidden, narrow)
    text_stream = depth * (texts + out_of_text) - out_of_text
    wide = 4 * linear(hidden, hidden) + 2 * head_dim + 3 * hidden * columns
    embedded = embedder(TIME_CHANNELS, hidden) + linear(side**2 * channels, hidden)
    embedded += linear(text, 2 * text) + linear(text, text) + linear(text, hidden)
    embedded += linear(text, narrow) + 3 * heads * (head_dim // 2)
    final = linear(hidden, 2 * hidden)
    out = linear(hidden, side**2 * config.size("out_channels", default=channels))
    return Model(
        fields=usual(
            axes=axes,
            hidden=hidden,
            heads=heads,
            depth=depth,
            block=double(axes, of_mlp(columns, hidden, "swiglu")),
            text=config.size("max_sequence_length", default=256),
            norm="rms",
        ),
        total=depth * own + text_stream + conditions + embedded + final + out,
        conditions=conditions,
        left_out={
            EMBEDDINGS: embedded,
            FINAL_CONDITION: final,
            f"text's stream, {narrow} wide and here {hidden}": text_stream - depth * wide,
        },
        comments={"axes": comment, "guidance": TWO_BRANCHES},
        differs=[f"Text's stream is {narrow} wide, here as wide as the video's.", NO_BIASES],
    )


# Text that shares all weights


def z_image(config: Config) -> Model:
    """Z-Image. Whatever ``n_kv_heads`` says, the class has as many heads of keys as of queries."""
    hidden, heads, depth = config.size("dim"), config.size("n_heads"), config.size("n_layers")
    columns, channels = int(hidden / 3 * 8), config.size("in_channels")
    side = config.sizes("all_patch_size", 1, [2])[0]
    text, time = config.size("cap_feat_dim"), min(hidden, TIME_CHANNELS)
    axes, comment = picture(1024, 1024, cell=8 * side)
    norms = 2 * (hidden // heads) if config.flag("qk_norm", default=True) else 0
    block = 4 * hidden**2 + norms + 3 * hidden * columns + 4 * hidden
    vectors, refiners = linear(time, 4 * hidden), config.count("n_refiner_layers")
    embedded = linear(time, 1024) + linear(1024, time) + 2 * hidden
    embedded += text + linear(text, hidden) + linear(side**2 * channels, hidden)
    left_out = {
        EMBEDDINGS: embedded,
        REFINERS: refiners * (2 * block + vectors),
        FINAL_CONDITION: linear(time, hidden),
    }
    if config.has("siglip_feat_dim"):
        image = config.size("siglip_feat_dim")
        refined = refiners * block + image + linear(image, hidden) + hidden
        left_out["refiner blocks of an image"] = refined
    conditions = depth * vectors
    out = linear(hidden, side**2 * channels)
    return Model(
        fields=usual(
            axes=axes,
            hidden=hidden,
            heads=heads,
            depth=depth,
            block=[{"attention": [*axes]}, of_mlp(columns, hidden, "swiglu")],
            text=512,
            norm="rms",
            qk_norm=norms > 0,
            batch=2,
        ),
        total=depth * block + conditions + out + sum(left_out.values()),
        conditions=conditions,
        left_out=left_out,
        comments={"axes": comment, "text": TEXT, "guidance": TWO_BRANCHES},
        differs=[NO_BIASES, "It norms behind its sublayers, too, here it does not."],
    )


def cogvideox(config: Config) -> Model:
    """CogVideoX and 1.5, whose file has the size of the latent."""
    heads, head_dim, hidden = heads_of(config)
    depth, channels = config.size("num_layers"), config.size("in_channels")
    side, joined = config.size("patch_size"), config.size("patch_size_t", default=1)
    time, text = config.size("time_embed_dim"), config.size("text_embed_dim")
    config.one_of("activation_fn", PLAIN, "gelu-approximate")
    stride = config.size("temporal_compression_ratio", default=4)
    latents = 1 + (config.size("sample_frames") - 1) // stride
    height, width = config.size("sample_height"), config.size("sample_width")
    axes = {"time": -(-latents // joined), "height": height // side, "width": width // side}
    cells = joined * side**2
    embedded = linear(cells * channels, hidden) + linear(text, hidden)
    embedded += linear(hidden, time) + linear(time, time)
    if config.has("ofs_embed_dim"):
        offset = config.size("ofs_embed_dim")
        embedded += 2 * linear(offset, offset)
    final = linear(time, 2 * hidden)
    out = 4 * hidden + linear(hidden, cells * config.size("out_channels", default=channels))
    has_bias = config.flag("attention_bias", default=True)
    block = linear(hidden, 3 * hidden, has_bias) + linear(hidden, hidden)
    block += 4 * hidden + 4 * head_dim + mlp(hidden, 4 * hidden)
    conditions = depth * 2 * linear(time, 6 * hidden)
    is_turned = config.flag("use_rotary_positional_embeddings")
    return Model(
        fields=usual(
            axes=axes,
            hidden=hidden,
            heads=heads,
            depth=depth,
            block=[{"attention": [*axes]}, of_mlp(4 * hidden, hidden)],
            text=config.size("max_text_seq_length", default=226),
            positions="rotary" if is_turned else "none",
        ),
        total=depth * block + conditions + embedded + final + out,
        conditions=conditions,
        left_out={EMBEDDINGS: embedded, FINAL_CONDITION: final},
        comments={
            "axes": f"the config's latent size; height and width are pixels / {8 * side}",
            "guidance": TWO_BRANCHES,
        },
        differs=["Text has a modulation of its own, and a layer norm of heads, here neither."],
    )


def minimax_h3(config: Config) -> Model:
    """MiniMax-H3: video, audio and text packed into one sequence; heads wider than hidden."""
    heads, head_dim, wide = heads_of(config)
    hidden, depth = config.size("hidden_size"), config.size("num_layers")
    columns, time = config.size("ffn_dim"), config.size("time_embed_dim")
    cells = math.prod(config.sizes("patch_size", 3, [1, 2, 2]))
    video, audio = cells * config.size("in_channels"), config.size("audio_in_channels")
    between = config.size("time_embed_hidden_dim")
    embedded = linear(config.size("freq_dim", default=TIME_CHANNELS), between)
    embedded += linear(between, time) + linear(video, hidden) + linear(audio, hidden)
    embedded += linear(config.size("text_dim"), hidden)
    block = 4 * hidden * wide + 2 * head_dim + 3 * hidden * columns + 2 * hidden
    final = linear(time, 2 * hidden)
    left_out = {
        EMBEDDINGS: embedded,
        REFINERS: config.count("num_refiner_layers") * block + hidden,
        FINAL_CONDITION: final,
    }
    # Video, audio and text have vectors of their own: 6 each, where a block here has 6 in all.
    conditions = depth * linear(time, 3 * 6 * hidden)
    out = hidden + linear(hidden, video) + linear(hidden, audio)
    return Model(
        fields=usual(
            axes={"sequence": 200_000},
            hidden=hidden,
            heads=heads,
            **({} if wide == hidden else {"head_dim": head_dim}),
            depth=depth,
            block=[{"attention": "sequence"}, of_mlp(columns, hidden, "swiglu")],
            norm="rms",
        ),
        total=depth * block + conditions + out + sum(left_out.values()),
        conditions=conditions,
        left_out=left_out,
        comments={
            "axes": "not in the config: tokens of video, audio and text, as long clips have them",
            "guidance": TWO_BRANCHES,
        },
        differs=[NO_BIASES],
    )


DIFFUSION_MODELS: Mapping[str, Callable[[Config], Model]] = {
    "WanTransformer3DModel": wan,
    "LTXVideoTransformer3DModel": ltx,
    "LTX2VideoTransformer3DModel": ltx_2,
    "FluxTransformer2DModel": flux,
    "Flux2Transformer2DModel": flux_2,
    "QwenImageTransformer2DModel": qwen_image,
    "HunyuanVideoTransformer3DModel": hunyuan_video,
    "HunyuanVideo15Transformer3DModel": hunyuan_video_15,
    "HunyuanImageTransformer2DModel": hunyuan_image,
    "MochiTransformer3DModel": mochi,
    "ZImageTransformer2DModel": z_image,
    "CogVideoXTransformer3DModel": cogvideox,
    "MiniMaxH3Transformer3DModel": minimax_h3,
}
"""By ``_class_name``."""
