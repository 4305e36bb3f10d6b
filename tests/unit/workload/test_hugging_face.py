"""A config.json as a workload: sizes, parameters of the whole class, and what is refused.

Parameters are those of the classes of diffusers 0.42.1 and transformers 5.24.0, built on torch's
meta device from the same keys; here are the keys that are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.golden import Golden

from spbench.workload.catalogue import find, load_file, load_text
from spbench.workload.flops import parameters
from spbench.workload.hugging_face import MAX_BYTES, REST, describe
from spbench.workload.workload import Workload
from spbench.workload.yaml_file import WorkloadError

WAN = {
    **{"_class_name": "WanTransformer3DModel", "num_attention_heads": 40, "num_layers": 40},
    **{"attention_head_dim": 128, "ffn_dim": 13824, "in_channels": 16, "out_channels": 16},
    **{"patch_size": [1, 2, 2], "text_dim": 4096, "freq_dim": 256, "cross_attn_norm": True},
    **{"qk_norm": "rms_norm_across_heads", "added_kv_proj_dim": None, "image_dim": None},
}
FLUX = {
    **{"_class_name": "FluxTransformer2DModel", "num_attention_heads": 24, "num_layers": 19},
    **{"num_single_layers": 38, "attention_head_dim": 128, "in_channels": 64, "patch_size": 1},
    **{"joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": True},
}
FLUX_2 = {
    **{"_class_name": "Flux2Transformer2DModel", "num_attention_heads": 48, "num_layers": 8},
    **{"num_single_layers": 48, "attention_head_dim": 128, "in_channels": 128, "patch_size": 1},
    **{"joint_attention_dim": 15360, "mlp_ratio": 3.0, "timestep_guidance_channels": 256},
}
QWEN_IMAGE = {
    **{"_class_name": "QwenImageTransformer2DModel", "num_attention_heads": 24, "num_layers": 60},
    **{"attention_head_dim": 128, "in_channels": 64, "out_channels": 16, "patch_size": 2},
    **{"joint_attention_dim": 3584, "guidance_embeds": False},
}
HUNYUAN = {
    **{"_class_name": "HunyuanVideoTransformer3DModel", "num_attention_heads": 24},
    **{"attention_head_dim": 128, "num_layers": 20, "num_single_layers": 40, "mlp_ratio": 4.0},
    **{"in_channels": 16, "out_channels": 16, "patch_size": 2, "patch_size_t": 1},
    **{"num_refiner_layers": 2, "text_embed_dim": 4096, "pooled_projection_dim": 768},
    **{"guidance_embeds": True, "qk_norm": "rms_norm"},
}
HUNYUAN_15 = {
    **{"_class_name": "HunyuanVideo15Transformer3DModel", "num_attention_heads": 16},
    **{"attention_head_dim": 128, "num_layers": 54, "num_refiner_layers": 2, "mlp_ratio": 4.0},
    **{"in_channels": 65, "out_channels": 32, "patch_size": 1, "patch_size_t": 1},
    **{"text_embed_dim": 3584, "text_embed_2_dim": 1472, "image_embed_dim": 1152},
}
HUNYUAN_IMAGE = {
    **{"_class_name": "HunyuanImageTransformer2DModel", "num_attention_heads": 28},
    **{"attention_head_dim": 128, "num_layers": 20, "num_single_layers": 40, "mlp_ratio": 4.0},
    **{"in_channels": 64, "out_channels": 64, "patch_size": [1, 1], "num_refiner_layers": 2},
    **{"text_embed_dim": 3584, "text_embed_2_dim": None, "guidance_embeds": False},
}
LTX = {
    **{"_class_name": "LTXVideoTransformer3DModel", "num_attention_heads": 32, "num_layers": 28},
    **{"attention_head_dim": 64, "in_channels": 128, "out_channels": 128, "caption_channels": 4096},
}
LTX_2 = {
    **{"_class_name": "LTX2VideoTransformer3DModel", "num_attention_heads": 32, "num_layers": 48},
    **{"attention_head_dim": 128, "in_channels": 128, "caption_channels": 3840},
    **{"audio_num_attention_heads": 32, "audio_attention_head_dim": 64, "audio_in_channels": 128},
}
Z_IMAGE = {
    **{"_class_name": "ZImageTransformer2DModel", "dim": 3840, "n_heads": 30, "n_kv_heads": 30},
    **{"n_layers": 30, "n_refiner_layers": 2, "in_channels": 16, "cap_feat_dim": 2560},
    **{"all_patch_size": [2], "qk_norm": True, "siglip_feat_dim": None},
}
COGVIDEOX = {
    **{"_class_name": "CogVideoXTransformer3DModel", "num_attention_heads": 48, "num_layers": 42},
    **{"attention_head_dim": 64, "in_channels": 16, "patch_size": 2, "patch_size_t": None},
    **{"sample_frames": 49, "sample_height": 60, "sample_width": 90, "time_embed_dim": 512},
    **{"text_embed_dim": 4096, "use_rotary_positional_embeddings": True},
}
MOCHI = {
    **{"_class_name": "MochiTransformer3DModel", "num_attention_heads": 24, "num_layers": 48},
    **{"attention_head_dim": 128, "in_channels": 12, "patch_size": 2, "text_embed_dim": 4096},
    **{"pooled_projection_dim": 1536, "max_sequence_length": 256},
}
MINIMAX = {
    **{"_class_name": "MiniMaxH3Transformer3DModel", "num_attention_heads": 56, "num_layers": 50},
    **{"attention_head_dim": 128, "hidden_size": 5376, "ffn_dim": 14336, "in_channels": 24},
    **{"audio_in_channels": 32, "time_embed_dim": 2688, "time_embed_hidden_dim": 5376},
    **{"text_dim": 5120, "num_refiner_layers": 2, "patch_size": [1, 2, 2]},
}


def lm(kind: str, sizes: tuple[int, int, int, int, int, int], **more: Any) -> dict[str, Any]:
    """Keys of a language model: hidden, mlp, blocks, heads, key heads, vocabulary, and others."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "vocab_size")
    usual = {"model_type": kind, "hidden_act": "silu", "max_position_embeddings": 40960}
    return usual | dict(zip(names, sizes, strict=True)) | more


QWEN3_MOE = lm(
    *("qwen3_moe", (2048, 6144, 48, 32, 4, 151936)),
    **{"head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 8},
    **{"moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []},
)
GLM = lm(
    *("glm4_moe", (4096, 10944, 46, 96, 8, 151552)),
    **{"head_dim": 128, "n_routed_experts": 128, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"moe_intermediate_size": 1408, "first_k_dense_replace": 1, "attention_bias": True},
)
LLAMA = lm("llama", (4096, 14336, 32, 32, 8, 128256), mlp_bias=False, attention_bias=False)
QWEN3_32B = lm("qwen3", (5120, 25600, 64, 64, 8, 151936), head_dim=128)
DEEPSEEK = {
    **lm("deepseek_v3", (7168, 18432, 61, 128, 128, 129280)),
    **{"architectures": ["DeepseekV3ForCausalLM"], "head_dim": 64, "kv_lora_rank": 512},
    **{"q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1},
    **{"moe_intermediate_size": 2048, "first_k_dense_replace": 3},
}
MODELS: dict[str, tuple[Mapping[str, Any], int]] = {
    "wan-2.1-14b": (WAN, 14_288_491_584),
    "wan-2.1-1.3b": (
        WAN | {"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960},
        1_418_996_800,
    ),
    "wan-2.2-ti2v-5b": (
        WAN
        | {"num_attention_heads": 24, "num_layers": 30, "ffn_dim": 14336}
        | {"in_channels": 48, "out_channels": 48},
        4_999_787_712,
    ),
    "flux.1-dev": (FLUX, 11_901_408_320),
    "flux.2-dev": (FLUX_2, 32_223_281_152),
    "qwen-image": (QWEN_IMAGE, 20_430_401_088),
    "hunyuanvideo": (HUNYUAN, 12_821_012_544),
    "hunyuanvideo-1.5": (HUNYUAN_15, 8_326_608_160),
    "ltx-2": (LTX_2, 18_876_174_592),
    "z-image": (Z_IMAGE, 6_154_908_736),
    "cogvideox-5b": (COGVIDEOX, 5_570_283_072),
    "cogvideox1.5-5b": (
        COGVIDEOX
        | {"patch_size_t": 2, "sample_frames": 81, "sample_height": 96, "sample_width": 170},
        5_570_676_352,
    ),
    "mochi-1": (MOCHI, 10_027_677_744),
    "minimax-h3": (MINIMAX, 33_122_992_896),
    "llama3-8b": (LLAMA, 8_030_261_248),
    "llama3-70b": (lm("llama", (8192, 28672, 80, 64, 8, 128256)), 70_553_706_496),
    "qwen3-32b": (QWEN3_32B, 32_762_123_264),
    "deepseek-v3": (DEEPSEEK, 671_026_404_352),
}
"""Models of the catalogue by their names: keys, and parameters of the class."""
OTHERS: dict[str, tuple[Mapping[str, Any], int]] = {
    "wan-2.1-i2v": (
        WAN | {"in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120},
        16_394_878_784,
    ),
    "hunyuanimage-2.1": (HUNYUAN_IMAGE, 17_411_235_904),
    "ltx-video": (LTX, 1_923_385_472),
    "z-image-of-images": (Z_IMAGE | {"siglip_feat_dim": 1152}, 6_513_266_880),
    "qwen2-7b": (lm("qwen2", (3584, 18944, 28, 28, 4, 152064)), 7_615_616_512),
    "qwen3-8b": (lm("qwen3", (4096, 12288, 36, 32, 8, 151936), head_dim=128), 8_190_735_360),
    "mistral-7b": (lm("mistral", (4096, 14336, 32, 32, 8, 32000)), 7_241_732_096),
    "qwen3-30b-a3b": (QWEN3_MOE, 30_532_122_624),
    "glm-4.5-air": (GLM, 106_852_245_504),
}


def written(folder: Path, keys: Mapping[str, Any] | list[Any] | str) -> Path:
    path = folder / "config.json"
    path.write_text(keys if isinstance(keys, str) else json.dumps(keys))
    return path


def made(folder: Path, keys: Mapping[str, Any]) -> Workload:
    return describe(written(folder, keys), "made").workload


def in_columns(workload: Workload) -> dict[str, Any]:
    """Its fields with columns in place of ratios, whose digits may differ."""
    data = workload.model_dump(mode="json", exclude={"name", "source", "depth", "block", "stacks"})
    data["mlps"] = [(workload.columns(mlp), mlp.activation, mlp.double) for mlp in workload.mlps]
    data["kinds"] = [type(sublayer).__name__ for sublayer in workload.kinds]
    data["attentions"] = [(x.axes, x.causal, x.double) for x in workload.attentions]
    return data | {"depths": workload.depth_in_words}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_catalogue_is_what_it_is_there(tmp_path: Path, name: str) -> None:
    """Fields are equal; a language model's sequence is as long as one likes."""
    mine, theirs = in_columns(made(tmp_path, MODELS[name][0])), in_columns(find(name))
    if "sequence" in theirs["axes"] and name != "minimax-h3":
        mine["axes"] = theirs["axes"]
    assert mine == theirs


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_parameters_are_those_of_the_class(tmp_path: Path, name: str) -> None:
    """The workload's and what is left out make up all of them; the rest is below 0.2 %."""
    keys, count = (MODELS | OTHERS)[name]
    described = describe(written(tmp_path, keys), name)
    assert described.total == count
    assert parameters(described.workload).total + sum(described.left_out.values()) == count
    assert abs(described.left_out.get(REST, 0)) < 0.002 * count
    assert f"{count:,}  in the model" in described.text


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_the_text_is_the_workload(tmp_path: Path, name: str) -> None:
    keys, _ = (MODELS | OTHERS)[name]
    described = describe(written(tmp_path, keys), name)
    assert load_text(described.text, "x") == described.workload
    assert max(map(len, described.text.splitlines())) <= 100


@pytest.mark.parametrize(
    "name", ["wan-2.1-i2v", "flux.1-dev", "mochi-1", "glm-4.5-air", "deepseek-v3"]
)
def test_texts(tmp_path: Path, name: str, golden: Golden) -> None:
    keys, _ = (MODELS | OTHERS)[name]
    golden(describe(written(tmp_path, keys), name).text)


def test_what_the_class_does_not_follow_is_not_followed(tmp_path: Path) -> None:
    """Wan norms whatever qk_norm says, and Z-Image has as many key heads whatever it says."""
    assert made(tmp_path, WAN | {"qk_norm": None}).qk_norm == "across_heads"
    assert made(tmp_path, Z_IMAGE | {"n_kv_heads": 10}).key_heads == 30


def test_keys_of_other_versions(tmp_path: Path) -> None:
    """An underscore is no key but the class's name; experts have three names, biases two."""
    for name in ("num_experts", "n_routed_experts"):
        keys = {key: value for key, value in QWEN3_MOE.items() if key != "num_local_experts"}
        assert made(tmp_path, keys | {name: 128, "_name_or_path": 3}) == made(tmp_path, QWEN3_MOE)
    old = {key: value for key, value in WAN.items() if value is not None and key != "freq_dim"}
    assert made(tmp_path, old | {"pos_embed_seq_len": None}) == made(tmp_path, WAN)
    assert made(tmp_path, LLAMA | {"torch_dtype": "float16"}).dtype == "float16"
    assert made(tmp_path, LLAMA | {"dtype": "float32", "head_dim": 128}).dtype == "float32"
    assert made(tmp_path, LLAMA | {"dtype": "float8_e4m3fn"}).dtype == "bfloat16"


def test_what_changes_a_language_model(tmp_path: Path) -> None:
    """Shared embeddings, a short context, a window, biases of the mlp, blocks without experts."""
    tied = describe(written(tmp_path, LLAMA | {"tie_word_embeddings": True}), "tied")
    assert tied.total == 8_030_261_248 - 4096 * 128256
    assert made(tmp_path, LLAMA | {"max_position_embeddings": 2048}).axes == {"sequence": 2048}
    windowed = made(tmp_path, LLAMA | {"sliding_window": 4096})
    assert [x.window for x in windowed.attentions] == [4096]
    for unused in ({"use_sliding_window": False}, {"layer_types": ["full_attention"]}):
        keys = LLAMA | {"sliding_window": 4096} | unused
        assert [x.window for x in made(tmp_path, keys).attentions] == [None]
    turns = {"layer_types": ["sliding_attention", "full_attention"] * 16}
    in_turn = made(tmp_path, LLAMA | {"sliding_window": 128} | turns)
    assert [x.window for x in in_turn.attentions] == [128, None]
    assert (in_turn.depth, len(in_turn.stack)) == (16, 64)
    first = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 29}
    assert made(tmp_path, LLAMA | {"sliding_window": 128} | first).depth_in_words == "3 + 29"
    headless = LLAMA | {"architectures": ["LlamaForSequenceClassification"]}
    assert describe(written(tmp_path, headless), "headless").total == tied.total
    assert describe(written(tmp_path, LLAMA | {"architectures": 3}), "x").total == 8_030_261_248
    biased = describe(written(tmp_path, LLAMA | {"mlp_bias": True}), "biased")
    assert biased.total == 8_030_261_248 + 32 * (2 * 14336 + 4096)
    mixed = made(tmp_path, QWEN3_MOE | {"mlp_only_layers": [0, 1], "intermediate_size": 8192})
    assert [part.depth for part in mixed.parts] == [2, 46]
    assert [mixed.columns(mlp) for mlp in mixed.mlps] == [8192, 8 * 768]
    sparse = made(tmp_path, QWEN3_MOE | {"decoder_sparse_step": 24, "intermediate_size": 8192})
    assert [part.depth for part in sparse.parts] == [23, 1, 23, 1]
    gelu = describe(written(tmp_path, LLAMA | {"hidden_act": "gelu"}), "gelu")
    assert "The gate of its mlp is gelu, here silu." in gelu.text
    light = describe(written(tmp_path, DEEPSEEK | {"q_lora_rank": None}), "light")
    assert light.total == 671_026_404_352 + 61 * (7168 * 24576 - 1536 * (7168 + 24576 + 1))
    latent = describe(written(tmp_path, DEEPSEEK | {"attention_bias": True}), "latent")
    assert latent.total == 671_026_404_352 + 61 * (1536 + 576 + 7168)
    shared = made(tmp_path, GLM)
    assert [shared.columns(mlp) for mlp in shared.mlps] == [10944, 9 * 1408]


def test_what_changes_a_diffusion_model(tmp_path: Path) -> None:
    """Switches of the classes, and what they add; sizes of patches lead to the axes."""
    base = describe(written(tmp_path, HUNYUAN_IMAGE), "base").total
    for switch in ("use_meanflow", "guidance_embeds"):
        keys = HUNYUAN_IMAGE | {switch: True}
        assert describe(written(tmp_path, keys), "x").total == base + 13_769_728
    glyphs = describe(written(tmp_path, HUNYUAN_IMAGE | {"text_embed_2_dim": 1472}), "glyphs")
    assert (glyphs.total, glyphs.workload.text) == (base + 14_559_616, 1128)
    gated = describe(written(tmp_path, LTX_2 | {"gated_attn": True}), "gated")
    assert "What gated_attn adds" in gated.text
    bare = describe(written(tmp_path, LTX_2 | {"use_prompt_embeddings": False}), "bare")
    assert bare.total == 18_831_597_824
    offset = describe(written(tmp_path, COGVIDEOX | {"ofs_embed_dim": 512}), "offset")
    assert offset.total == 5_570_283_072 + 525_312
    absolute = made(tmp_path, COGVIDEOX | {"use_rotary_positional_embeddings": False})
    assert absolute.positions == "none"
    assert made(tmp_path, FLUX | {"guidance_embeds": False}).text == 256
    assert made(tmp_path, FLUX | {"num_single_layers": 0}).stacks is None
    assert made(tmp_path, HUNYUAN | {"patch_size_t": 2}).axes["time"] == 17
    assert made(tmp_path, WAN | {"patch_size": 2}).axes["time"] == 11


def test_a_folder(tmp_path: Path) -> None:
    """A model's own and a pipeline's have the file in their places."""
    assert describe(written(tmp_path, LLAMA).parent, "x").workload.hidden == 4096
    pipeline = tmp_path / "pipeline"
    (pipeline / "transformer").mkdir(parents=True)
    written(pipeline / "transformer", WAN)
    assert describe(pipeline, "x").workload.hidden == 5120


WRONG: dict[str, Mapping[str, Any] | list[Any] | str] = {
    "latent attention of another": DEEPSEEK | {"model_type": "new_one", "architectures": None},
    "latent attention without its size": DEEPSEEK | {"v_head_dim": None},
    "unknown class": {"_class_name": "SanaTransformer2DModel"},
    "near a known class": {"_class_name": "WanTransformer3dModel"},
    "unknown kind": {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
    "a scheduler": {"_class_name": "FlowMatchEulerDiscreteScheduler"},
    "a pipeline": {"_class_name": "WanPipeline", "transformer": ["diffusers", "WanTrans"]},
    "no architecture": {"hidden_size": 4096},
    "a list": [WAN],
    "nothing": "",
    "not JSON": '{"model_type": "llama",\n "hidden_size": 4096,,}',
    "too deep": "[" * 100_000,
    "too large": " " * (MAX_BYTES + 1),
    "a number without end": '{"a": ' + "9" * 5000 + "}",
    "a missing key": {key: value for key, value in WAN.items() if key != "ffn_dim"},
    "null": WAN | {"num_layers": None},
    "a word": WAN | {"num_layers": "40"},
    "a truth value": WAN | {"num_layers": True},
    "a fraction": LLAMA | {"hidden_size": 4096.5},
    "below zero": LLAMA | {"num_hidden_layers": -1},
    "too many": LLAMA | {"num_hidden_layers": 2_000_000_000},
    "two patches": WAN | {"patch_size": [2, 2]},
    "a patch of words": WAN | {"patch_size": ["1", "2", "2"]},
    "a wide mlp": FLUX_2 | {"mlp_ratio": "3"},
    "no flag": FLUX | {"guidance_embeds": 1},
    "no activation": LLAMA | {"hidden_act": "quick_gelu"},
    "no norm": HUNYUAN | {"qk_norm": "l2"},
    "key heads": LLAMA | {"num_key_value_heads": 5},
    "odd heads": lm("llama", (4096, 14336, 32, 30, 6, 128256)),
    "heads of one": WAN | {"attention_head_dim": 3},
    "layers that are no list": QWEN3_MOE | {"mlp_only_layers": 3},
}


@pytest.mark.parametrize("why", WRONG)
def test_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path(), WRONG[why])
    with pytest.raises(WorkloadError) as caught:
        describe(Path("config.json"), "mine")
    golden(str(caught.value))


def test_refused_places(tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such file, a folder without one, bytes that are no text, a name that no file may have."""
    monkeypatch.chdir(tmp_path)
    written(Path(), LLAMA)
    Path("empty").mkdir()
    Path("bytes.json").write_bytes(b"\xff\xfe\x00")
    for place in ("confg.json", "empty", "bytes.json", "a\0b"):
        with pytest.raises(WorkloadError) as caught:
            describe(Path(place), "mine")
        golden(str(caught.value), place.encode("unicode_escape").decode())


def test_a_name_with_other_characters(tmp_path: Path) -> None:
    """Whatever a file calls its architecture and whatever the workload's name is, it loads."""
    odd = LLAMA | {"architectures": ["A\nb: [\u2028"]}
    described = describe(written(tmp_path, odd), "yes: 'no'")
    assert load_text(described.text, "x").name == "yes: 'no'"
    with pytest.raises(WorkloadError, match="do not print"):
        describe(written(tmp_path, LLAMA), "a\nb")


def test_the_file_in_place_of_a_workload(tmp_path: Path) -> None:
    """The message says how to make a workload of it."""
    with pytest.raises(WorkloadError, match="spbench init my-model --from"):
        load_file(written(tmp_path, WAN))
