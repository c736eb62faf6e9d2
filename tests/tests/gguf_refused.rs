//! What of a GGUF file is not known is refused, with its name.

use monomorph_formats::{Format, encode};
use monomorph_tests::converted::converted;
use monomorph_tests::gguf_files::{imported, plain};
use monomorph_tests::goldens::golden;
use monomorph_weights::test_support::{GgufWriter, Value};

#[test]
fn what_is_unknown_of_a_file_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("temporary directories can be made");
    let aligned = golden("llama-aligned");
    let aligned_plain = plain(&aligned, directory.path());
    let sound = || converted("llama", &aligned, &aligned_plain, Format::F32);
    let hybrid_golden = golden("qwen35-vision");
    let hybrid_plain = plain(&hybrid_golden, directory.path());
    let regular = golden("qwen35-text");
    let regular_plain = plain(&regular, directory.path());
    let hybrid = || converted("qwen35", &hybrid_golden, &hybrid_plain, Format::F32);
    let vector = |count: usize| encode(Format::F32, &vec![3.0; count]);
    let [gemma, nemotron] = ["gemma4-dense", "nemotron-h-mtp"].map(golden);
    let [gemma_plain, nemotron_plain] = [&gemma, &nemotron].map(|golden| plain(golden, directory.path()));
    let gemma = || converted("gemma4", &gemma, &gemma_plain, Format::F32);
    let nemotron = || converted("nemotron_h_moe", &nemotron, &nemotron_plain, Format::F32);
    let cases: [(GgufWriter, &str); 24] = [
        (GgufWriter::new(), "`general.architecture` is missing; known are `llama`"),
        (
            GgufWriter::new().metadata("general.architecture", "rwkv7"),
            "`general.architecture` = \"rwkv7\": not a known architecture",
        ),
        (
            GgufWriter::new().metadata("general.architecture", "mistral4"),
            "`general.architecture` = \"mistral4\": keys and values of a latent are two tensors",
        ),
        (
            // Of Ministral 3, whose queries are scaled by their positions.
            converted("mistral3", &aligned, &aligned_plain, Format::F32)
                .metadata("mistral3.attention.temperature_scale", Value::F32(0.1)),
            "metadata `mistral3.attention.temperature_scale` is not known of the mistral3 architecture",
        ),
        (
            sound().metadata("llama.expert_count", Value::U32(8)),
            "metadata `llama.expert_count` is not known of the llama architecture",
        ),
        (
            sound().metadata("llama.vocab_size", Value::U32(7)),
            "metadata `llama.vocab_size` is 7: 128, as many as the embedding has rows is known",
        ),
        (
            sound().tensor("blk.1.attn_sinks.weight", &[4], Format::F32, vector(4)),
            "the tensor \"blk.1.attn_sinks.weight\" is no part of the model",
        ),
        (
            sound().tensor("rope_freqs.weight", &[8], Format::F32, vector(8)),
            "\"rope_freqs.weight\" holds other factors than those of Llama 3's scaling",
        ),
        (
            gemma().changed("gemma4.attention.shared_kv_layers", Value::U32(2)),
            "metadata `gemma4.attention.shared_kv_layers` is 2: 0, as no layer reads another layer's keys",
        ),
        (
            gemma().changed("gemma4.embedding_length_per_layer_input", Value::U32(256)),
            "metadata `gemma4.embedding_length_per_layer_input` is 256: 0, without embeddings for each layer",
        ),
        (
            gemma().changed("gemma4.block_count", Value::U32(u32::MAX)),
            "metadata `gemma4.block_count` is 4294967295: at most 16384 are known",
        ),
        (
            gemma().changed("gemma4.attention.sliding_window_pattern", Value::Bools(vec![true, false])),
            "metadata `gemma4.attention.sliding_window_pattern` says of 2 blocks whether they have a window: of all 6",
        ),
        (
            gemma().changed("gemma4.attention.head_count_kv", Value::I32s(vec![3, 1, 2, 3, 3, 2])),
            "metadata `gemma4.attention.head_count_kv` has 3 and 1 of blocks of one kind",
        ),
        (
            gemma().changed("gemma4.attention.head_count_kv", Value::I32s(vec![3, 3, -2, 3, 3, 2])),
            "metadata `gemma4.attention.head_count_kv` has -2, which is not a u32",
        ),
        (
            gemma().without("rope_freqs.weight").tensor("rope_freqs.weight", &[10], Format::F32, vector(10)),
            "\"rope_freqs.weight\" holds other factors than those of proportional rotary embeddings: of 10 pairs",
        ),
        (
            gemma().metadata("gemma4.attn_logit_softcapping", Value::F32(50.0)),
            "metadata `gemma4.attn_logit_softcapping` is not known of the gemma4 architecture",
        ),
        (
            nemotron().changed("nemotron_h_moe.feed_forward_length", Value::I32s(vec![0, 20, 0, 20, 20])),
            "block 3 has heads of keys and a width: a layer is one block",
        ),
        (
            nemotron().changed("nemotron_h_moe.expert_weights_norm", Value::Bool(false)),
            "metadata `nemotron_h_moe.expert_weights_norm` is false: only weights divided by their sum are known",
        ),
        (
            nemotron().changed("nemotron_h_moe.nextn_predict_layers", Value::U32(2)),
            "metadata `nemotron_h_moe.nextn_predict_layers` is 2, of 5 blocks: one behind the layers is known",
        ),
        (
            nemotron().tensor("blk.1.ffn_gate_exps.weight", &[20, 20, 28], Format::F32, vector(20 * 20 * 28)),
            "the tensor \"blk.1.ffn_gate_exps.weight\" is no part of the model",
        ),
        (
            hybrid().metadata("qwen35.ssm.dt_b_c_rms", Value::Bool(true)),
            "metadata `qwen35.ssm.dt_b_c_rms` is not known of the qwen35 architecture",
        ),
        (
            hybrid().tensor("blk.0.ssm_d", &[4], Format::F32, vector(4)),
            "the tensor \"blk.0.ssm_d\" is no part of the model",
        ),
        (
            hybrid().tensor("blk.4.nextn.embed_tokens.weight", &[41, 34], Format::F32, vector(41 * 34)),
            "the tensor \"blk.4.nextn.embed_tokens.weight\" is no part of the model",
        ),
        (
            converted("qwen35", &regular, &regular_plain, Format::F32)
                .metadata("qwen35.attention.recurrent_layers", Value::Bools(vec![true, false])),
            "metadata `qwen35.attention.recurrent_layers` says of 2 blocks whether they are recurrent: of all 5",
        ),
    ];
    for (file, wanted) in cases {
        let error = imported(&file, "refused", directory.path()).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}
