"""Configs of the hybrid and mixture-of-experts families, written as releases write them, with awkward dimensions."""

import transformers

# Read only by our own scripts; never written to config.json.
OPTIONS = {"per_expert", "draft", "stored_f32", "seed"}


def common(hidden, layers, vocabulary, **keys):
    return {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-6,
        "use_cache": True,
        "vocab_size": vocabulary,
    } | keys


def attention(heads, kv_heads, head_dim):
    return {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def delta(key_heads, value_heads, key_dim, value_dim, taps=4):
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
        "linear_conv_kernel_dim": taps,
    }


def experts(count, active, width, shared=None):
    keys = {
        "num_experts": count,
        "num_experts_per_tok": active,
        "moe_intermediate_size": width,
        "router_aux_loss_coef": 0.001,
    }
    return keys if shared is None else keys | {"shared_expert_intermediate_size": shared}


def rope(theta, sections=None, **keys):
    keys = {"rope_theta": theta, "rope_type": "default"} | keys
    if sections is not None:
        keys |= {"mrope_interleaved": True, "mrope_section": sections}
    return {"rope_parameters": keys}


def kinds(pattern):
    """Expands "LLF" to a `layer_types` list."""
    return {"layer_types": [{"L": "linear_attention", "F": "full_attention"}[letter] for letter in pattern]}


def qwen35(*parts, moe=False, **keys):
    """The text part of Qwen3.5: a config of its own, or the `text_config` of a multimodal one."""
    config = {
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
    }
    for part in (*parts, keys):
        config |= part
    return config


def text_only(config):
    """A text part shipped by itself."""
    architecture = "Qwen3_5MoeForCausalLM" if "moe" in config["model_type"] else "Qwen3_5ForCausalLM"
    return config | {"architectures": [architecture], "transformers_version": transformers.__version__}


def multimodal(text, tied, **options):
    """As released: the text part below `text_config`, a vision tower beside it."""
    family, vocabulary = text["model_type"].removesuffix("_text"), text["vocab_size"]
    architecture = {
        "qwen3_5": "Qwen3_5ForConditionalGeneration",
        "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
        "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    }[family]
    return {
        "architectures": [architecture],
        # As in releases: ids of the vocabulary. No prompt contains them.
        "image_token_id": vocabulary - 2,
        "model_type": family,
        "text_config": text,
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "video_token_id": vocabulary - 1,
        "vision_config": {
            "deepstack_visual_indexes": [0] if family == "qwen3_vl_moe" else [],
            "depth": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": 8,
            "in_channels": 3,
            "initializer_range": 0.02,
            "intermediate_size": 10,
            "model_type": family,
            "num_heads": 2,
            "num_position_embeddings": 9,
            "out_hidden_size": text["hidden_size"],
            "patch_size": 2,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vision_end_token_id": vocabulary - 3,
        "vision_start_token_id": vocabulary - 4,
    } | options


def qwen3_next(*parts, **keys):
    """As the release spells it: rope settings at the top level, no key for the draft layer."""
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "mlp_only_layers": [],
        "model_type": "qwen3_next",
        "output_router_logits": False,
        "rope_scaling": None,
        "transformers_version": "4.57.0.dev0",
        "use_sliding_window": False,
    }
    for part in (*parts, keys):
        config |= part
    return config


def qwen3_moe(*parts, **keys):
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_window_layers": 4,
        "model_type": "qwen3_moe",
        "output_router_logits": False,
        "rope_scaling": None,
        "sliding_window": None,
        "transformers_version": "4.51.0",
        "use_sliding_window": False,
    }
    for part in (*parts, keys):
        config |= part
    return config


def qwen3_vl(*parts, **keys):
    """The `text_config` of Qwen3-VL's mixtures: ropes as transformers 4 writes them."""
    config = {"mlp_only_layers": [], "model_type": "qwen3_vl_moe_text", "norm_topk_prob": True}
    for part in (*parts, keys):
        config |= part
    return config


def old_rope(theta, sections):
    scaling = {"mrope_interleaved": True, "mrope_section": sections, "rope_type": "default"}
    return {"rope_theta": theta, "rope_scaling": scaling}


def minimax(*parts, **keys):
    """As releases spell it: no `norm_topk_prob`, draft modules that no release has."""
    config = {
        "architectures": ["MiniMaxM2ForCausalLM"],
        "model_type": "minimax_m2",
        "mtp_transformer_layers": 1,
        "num_mtp_modules": 3,
        "qk_norm_type": "per_layer",
        "rope_theta": 5000000,
        "scoring_func": "sigmoid",
        "shared_intermediate_size": 0,
        "transformers_version": "4.46.1",
        "use_mtp": True,
        "use_qk_norm": True,
        "use_routing_bias": True,
    }
    for part in (*parts, keys):
        config |= part
    config["attn_type_list"] = [1] * config["num_hidden_layers"]
    del config["attention_bias"]
    return config


def catalogue():
    """Name to config, with our own options among the keys (see `split`)."""
    return {
        # Three value heads per key head; five layers by interval alone, so the last is linear; tied; a
        # quarter rotated, by default.
        "qwen35-text": text_only(
            qwen35(
                common(36, 5, 47),
                attention(3, 1, 16),
                delta(2, 6, 8, 10),
                rope(10000.0),
                full_attention_interval=3,
                intermediate_size=50,
                tie_word_embeddings=True,
            )
        ),
        # Four per key head, all of the head rotated, full attention first, three taps, untied; no interval.
        "qwen35-quarters": text_only(
            qwen35(
                common(45, 5, 43, rms_norm_eps=1e-5),
                attention(5, 5, 12),
                delta(1, 4, 14, 6, taps=3),
                rope(10000.0, partial_rotary_factor=1.0),
                kinds("FLLFL"),
                intermediate_size=38,
                tie_word_embeddings=False,
            )
        ),
        # Ungrouped, wider keys than values, tied on both levels, half rotated, a draft layer; the small
        # tensors are f32 in the bf16 files too, as in the 0.8B release.
        "qwen35-vision": multimodal(
            qwen35(
                common(34, 4, 41),
                attention(4, 2, 16),
                delta(3, 3, 12, 6),
                rope(1000000.0, sections=[2, 1, 1], partial_rotary_factor=0.5),
                kinds("LLLF"),
                eos_token_id=2,
                full_attention_interval=4,
                intermediate_size=46,
                mtp_num_hidden_layers=1,
                tie_word_embeddings=True,
            ),
            tied=True,
            draft=True,
            stored_f32=True,
        ),
        # Stacked experts, a shared expert twice as wide and odd, layer count no multiple of the interval,
        # untied.
        "qwen35-moe-text": text_only(
            qwen35(
                common(33, 5, 43),
                attention(2, 1, 24),
                delta(2, 4, 9, 10),
                rope(100000.0, partial_rotary_factor=0.25),
                experts(13, 4, 7, shared=15),
                moe=True,
                full_attention_interval=2,
                tie_word_embeddings=False,
            )
        )
        # With the seed of its position in the catalogue, no first token has a clear choice of experts.
        | {"seed": 107},
        # Forty experts, eight active, one tensor each as in FP8 releases; a draft layer with its own experts.
        "qwen35-moe-vision": multimodal(
            qwen35(
                common(32, 3, 41),
                attention(4, 1, 8),
                delta(2, 4, 10, 6),
                rope(10000.0, sections=[1, 1, 0], partial_rotary_factor=0.5),
                experts(40, 8, 4, shared=6),
                kinds("LLF"),
                moe=True,
                eos_token_id=2,
                full_attention_interval=4,
                mlp_only_layers=[],
                mtp_num_hidden_layers=1,
                mtp_use_dedicated_embeddings=False,
            ),
            tied=False,
            per_expert=True,
            draft=True,
        ),
        # Fused projections with a ratio of two; a dense layer among sparse ones; six layers, no multiple of
        # four.
        "qwen3-next": qwen3_next(
            common(35, 6, 43),
            attention(4, 2, 16),
            delta(2, 4, 8, 8),
            experts(9, 3, 6, shared=11),
            decoder_sparse_step=1,
            full_attention_interval=4,
            intermediate_size=40,
            mlp_only_layers=[1],
            norm_topk_prob=True,
            partial_rotary_factor=0.25,
            per_expert=True,
            rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        # Fused projections with a ratio of three; one expert of five, its weight not renormalised; every
        # other layer sparse; tied.
        "qwen3-next-one": qwen3_next(
            common(40, 4, 47),
            attention(3, 3, 10),
            delta(2, 6, 6, 8),
            experts(5, 1, 14, shared=9),
            kinds("LFLL"),
            decoder_sparse_step=2,
            intermediate_size=30,
            norm_topk_prob=False,
            partial_rotary_factor=1.0,
            per_expert=True,
            rope_theta=500000.0,
            tie_word_embeddings=True,
        ),
        # No shared expert, head_dim left to hidden / heads, one dense layer.
        "qwen3-moe": qwen3_moe(
            {key: value for key, value in (common(54, 3, 53) | attention(3, 1, 18)).items() if key != "head_dim"},
            experts(11, 3, 7),
            decoder_sparse_step=1,
            intermediate_size=44,
            mlp_only_layers=[1],
            norm_topk_prob=True,
            per_expert=True,
            rope_theta=1000000.0,
            tie_word_embeddings=False,
        ),
        # norm_topk_prob left out, which means false in this family; head_dim stated; every other layer dense;
        # tied.
        "qwen3-moe-raw": qwen3_moe(
            common(38, 4, 51),
            attention(5, 5, 14),
            experts(7, 2, 18),
            decoder_sparse_step=2,
            intermediate_size=41,
            mlp_only_layers=[],
            per_expert=True,
            rope_theta=1000000.0,
            tie_word_embeddings=True,
        ),
        # 256 columns: of the eight warps that read an expert's matrix each gets 32 and scales its own part of
        # a row of x. Mixtures with a shared expert stream if the number of experts is a multiple of eight.
        "qwen35-moe-wide": text_only(
            qwen35(
                common(256, 1, 37),
                attention(2, 1, 16),
                delta(1, 2, 8, 8),
                rope(10000.0, partial_rotary_factor=0.5),
                experts(16, 4, 12, shared=20),
                kinds("F"),
                moe=True,
                full_attention_interval=1,
                tie_word_embeddings=True,
            )
        ),
        # Five experts, multi-query, odd hidden size, half of a head rotated, tied.
        "minimax-m2-few": minimax(
            common(37, 3, 47),
            attention(5, 1, 12),
            intermediate_size=14,
            num_experts_per_tok=2,
            num_local_experts=5,
            per_expert=True,
            rotary_dim=6,
            tie_word_embeddings=True,
        ),
        # Twenty-four experts, three query heads per key head, a quarter of a head rotated, untied.
        "minimax-m2": minimax(
            common(48, 2, 43),
            attention(6, 2, 16),
            intermediate_size=10,
            num_experts_per_tok=4,
            num_local_experts=24,
            per_expert=True,
            rotary_dim=4,
            tie_word_embeddings=False,
        ),
        # Nine experts, a key head for each query head, whole heads rotated, untied.
        "minimax-m2-whole": minimax(
            common(44, 2, 53, rms_norm_eps=1e-5),
            attention(4, 4, 20),
            intermediate_size=18,
            num_experts_per_tok=3,
            num_local_experts=9,
            per_expert=True,
            rotary_dim=20,
            tie_word_embeddings=False,
        ),
        # Five experts, multi-query, tied.
        "qwen3-vl-few": multimodal(
            qwen3_vl(
                common(38, 3, 47),
                attention(3, 1, 20),
                experts(5, 2, 13),
                old_rope(5000000, [4, 3, 3]),
                decoder_sparse_step=1,
                intermediate_size=44,
            ),
            tied=True,
            per_expert=True,
        ),
        # Twenty-four experts, a dense layer, untied.
        "qwen3-vl": multimodal(
            qwen3_vl(
                common(40, 3, 53),
                attention(4, 2, 16),
                experts(24, 4, 6),
                old_rope(5000000, [4, 2, 2]),
                decoder_sparse_step=1,
                intermediate_size=50,
                mlp_only_layers=[1],
            ),
            tied=False,
            per_expert=True,
        ),
        # Seven experts in every other layer, four query heads a key head, rope as transformers 5 writes it,
        # tied.
        "qwen3-vl-fours": multimodal(
            qwen3_vl(
                common(52, 4, 59, rms_norm_eps=1e-5),
                attention(8, 2, 12),
                experts(7, 3, 10),
                rope(1000000.0, mrope_interleaved=True, mrope_section=[2, 2, 2]),
                decoder_sparse_step=2,
                intermediate_size=36,
            ),
            tied=True,
            per_expert=True,
        ),
    }


def split(entry):
    """A catalogue's entry as (config, options)."""
    config = {key: value for key, value in entry.items() if key not in OPTIONS}
    return config, {key: entry.get(key, False) for key in OPTIONS}
