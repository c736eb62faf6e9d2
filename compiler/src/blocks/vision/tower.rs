//! The bodies of a tower, and those that its rows go through in the text model.

use super::graph::{
    AddImageRows, ImageRows, LayerNorm, MergePatches, Merged, PatchPositions, PatchRotary, PatchTurn,
    PositionTable, SegmentAttention, Standardise,
};
use super::spec::{Vision, VisionFamily};
use crate::graph::{Body, BodyBuilder, BodyId, Branch, Builder, Op, Rows, Run, ValueId, VisionGraph};
use crate::spec::types::{Activation, Model};

/// Builds the tower of `model`.
pub(in crate::blocks) fn build(graph: &mut Builder, model: &Model, vision: &Vision) -> VisionGraph {
    let bodies = vec![patches(graph, vision), block(graph, vision), merger(graph, model, vision)];
    let run = |body, layer| Run { body: BodyId(body), layer };
    let layers = (0..vision.depth).map(|layer| run(1, Some(layer)));
    let schedule: Vec<Run> = [run(0, None)].into_iter().chain(layers).chain([run(2, None)]).collect();
    let mut it = VisionGraph { bodies, schedule, branches: Vec::new() };
    if !vision.deepstack().is_empty() {
        it.bodies.push(deepstack(graph, vision));
        let branch = |(tap, layer): (usize, &usize)| Branch { after: *layer, run: run(3, Some(tap)) };
        it.branches = vision.deepstack().iter().enumerate().map(branch).collect();
    }
    it
}

/// Puts the rows of images in place of embeddings.
pub(in crate::blocks) fn image_rows(body: &mut BodyBuilder, name: &str, x: ValueId) -> ValueId {
    let width = body.width(x);
    body.node(name, Rows::Tokens, width, ImageRows, &[x])
}

/// The body behind a layer of the text model that adds what a tap gives.
pub(in crate::blocks) fn add_image_rows(model: &Model, tap: usize) -> Body {
    let mut body = BodyBuilder::new(&format!("image_rows_{tap}"), Some(model.hidden));
    let op = AddImageRows { tap };
    let residual = body.node("residual_out", Rows::Tokens, model.hidden, op, &[ValueId(0)]);
    body.finish(residual)
}

fn patches(graph: &mut Builder, vision: &Vision) -> Body {
    let mut body = BodyBuilder::of_rows("patches", "pixels", Rows::Patches, vision.values());
    let bias = matches!(vision.family, VisionFamily::Qwen { .. });
    let mut x = graph.linear(&mut body, "embedded", "vision.patch", ValueId(0), bias);
    let table = match vision.family {
        VisionFamily::Qwen { positions, .. } => Some(PositionTable::Square { side: positions }),
        VisionFamily::Gemma { positions, .. } => Some(PositionTable::Axes { entries: positions }),
        VisionFamily::Pixtral { .. } => None,
    };
    match table {
        Some(form) => {
            let op = PatchPositions { table: graph.weight("vision.positions"), form };
            x = body.node("placed", Rows::Patches, vision.hidden, op, &[x]);
        }
        None => x = graph.norm(&mut body, "vision.norm", vision.norm(), x, 1),
    }
    body.finish(x)
}

/// A layer norm of Qwen's towers, an RMS norm of others.
fn norm(graph: &mut Builder, body: &mut BodyBuilder, vision: &Vision, name: &str, x: ValueId) -> ValueId {
    let VisionFamily::Qwen { .. } = vision.family else {
        return graph.norm(body, name, vision.norm(), x, 1);
    };
    let (rows, width) = (body.rows(x), body.width(x));
    let (weight, bias) = (graph.weight(name), graph.weight(&format!("{name}.bias")));
    let value = format!("{}_normed", name.rsplit('.').nth(1).unwrap_or("it"));
    body.node(&value, rows, width, LayerNorm { weight, bias, eps: vision.eps() }, &[x])
}

fn block(graph: &mut Builder, vision: &Vision) -> Body {
    let Vision { hidden, heads, ref family, .. } = *vision;
    let (bias, head_dim) = (matches!(family, VisionFamily::Qwen { .. }), vision.head_dim());
    let mut body = BodyBuilder::of_rows("block", "residual", Rows::Patches, hidden);
    let gemma = matches!(family, VisionFamily::Gemma { .. });

    let normed = norm(graph, &mut body, vision, "vision.layers.{layer}.attention.norm", ValueId(0));
    let part = |part: &str| format!("vision.layers.{{layer}}.attention.{part}");
    let mut qkv = ["q", "k", "v"].map(|it| graph.linear(&mut body, it, &part(it), normed, bias));
    if gemma {
        qkv[0] = graph.norm(&mut body, &part("q_norm"), vision.norm(), qkv[0], heads);
        qkv[1] = graph.norm(&mut body, &part("k_norm"), vision.norm(), qkv[1], heads);
        let op = Op::Normalise { eps: vision.eps(), groups: heads };
        qkv[2] = body.node("v_normed", Rows::Patches, hidden, op, &[qkv[2]]);
    }
    let turns = PatchTurn::of(vision);
    for (name, at) in [("q_rotated", 0), ("k_rotated", 1)] {
        let op = PatchRotary { heads, head_dim, turns: turns.clone() };
        qkv[at] = body.node(name, Rows::Patches, hidden, op, &[qkv[at]]);
    }
    let scale = if gemma { 1.0 } else { 1.0 / (head_dim as f32).sqrt() };
    let context = SegmentAttention { heads, head_dim, scale };
    let context = body.node("context", Rows::Patches, hidden, context, &qkv);
    let mut mixed = graph.linear(&mut body, "o", &part("o"), context, bias);
    if gemma {
        mixed = graph.norm(&mut body, &part("post_norm"), vision.norm(), mixed, 1);
    }
    let residual = body.node("mixed", Rows::Patches, hidden, Op::Add, &[ValueId(0), mixed]);

    let part = |part: &str| format!("vision.layers.{{layer}}.ffn.{part}");
    let normed = norm(graph, &mut body, vision, &part("norm"), residual);
    let gate = match family {
        VisionFamily::Qwen { .. } => None,
        VisionFamily::Gemma { .. } => Some(Activation::GeluTanh),
        VisionFamily::Pixtral { .. } => Some(Activation::Silu),
    };
    let inner = match gate {
        Some(activation) => {
            let [gate, up] = ["gate", "up"].map(|it| graph.linear(&mut body, it, &part(it), normed, false));
            body.node("inner", Rows::Patches, vision.width, Op::Gate { activation }, &[gate, up])
        }
        None => {
            let up = graph.linear(&mut body, "up", &part("up"), normed, true);
            let op = Op::Activate { activation: Activation::GeluTanh };
            body.node("inner", Rows::Patches, vision.width, op, &[up])
        }
    };
    let mut down = graph.linear(&mut body, "down", &part("down"), inner, bias);
    if gemma {
        down = graph.norm(&mut body, &part("post_norm"), vision.norm(), down, 1);
    }
    let residual = body.node("residual_out", Rows::Patches, hidden, Op::Add, &[residual, down]);
    body.finish(residual)
}

/// Merges the rows of every block into one.
fn merge(body: &mut BodyBuilder, vision: &Vision, form: Merged, x: ValueId) -> ValueId {
    let merged = vision.merged();
    let width = if form == Merged::Mean { vision.hidden } else { merged * vision.hidden };
    body.node("merged", Rows::ImageTokens, width, MergePatches { merged, form }, &[x])
}

/// Two products with GELU between them.
fn project(graph: &mut Builder, body: &mut BodyBuilder, name: &str, x: ValueId, bias: bool) -> ValueId {
    let up = graph.linear(body, "up", &format!("{name}.up"), x, bias);
    let (width, activation) = (body.width(up), Activation::Gelu);
    let inner = body.node("inner", Rows::ImageTokens, width, Op::Activate { activation }, &[up]);
    graph.linear(body, "rows", &format!("{name}.down"), inner, bias)
}

fn merger(graph: &mut Builder, model: &Model, vision: &Vision) -> Body {
    let mut body = BodyBuilder::of_rows("merger", "residual", Rows::Patches, vision.hidden);
    let rows = match vision.family {
        VisionFamily::Qwen { .. } => {
            let normed = norm(graph, &mut body, vision, "vision.merger.norm", ValueId(0));
            let merged = merge(&mut body, vision, Merged::SideBySide, normed);
            project(graph, &mut body, "vision.merger", merged, true)
        }
        VisionFamily::Gemma { standardise, .. } => {
            let mean = merge(&mut body, vision, Merged::Mean, ValueId(0));
            let scale = Op::Scale { factor: (vision.hidden as f32).sqrt() };
            let mut x = body.node("scaled", Rows::ImageTokens, vision.hidden, scale, &[mean]);
            if standardise {
                let [bias, scale] =
                    ["bias", "scale"].map(|it| graph.weight(&format!("vision.standard.{it}")));
                let op = Standardise { bias, scale };
                x = body.node("standard", Rows::ImageTokens, vision.hidden, op, &[x]);
            }
            let op = Op::Normalise { eps: vision.eps(), groups: 1 };
            let normed = body.node("normed", Rows::ImageTokens, vision.hidden, op, &[x]);
            graph.linear(&mut body, "rows", "vision.projection", normed, false)
        }
        VisionFamily::Pixtral { .. } => {
            let normed = graph.norm(&mut body, "vision.merger.norm", model.norm, ValueId(0), 1);
            let merged = merge(&mut body, vision, Merged::ByChannel, normed);
            let x = graph.linear(&mut body, "mixed", "vision.merger.merge", merged, false);
            project(graph, &mut body, "vision.merger", x, false)
        }
    };
    body.finish(rows)
}

/// Qwen's further mergers, which norm merged rows.
fn deepstack(graph: &mut Builder, vision: &Vision) -> Body {
    let mut body = BodyBuilder::of_rows("deepstack", "residual", Rows::Patches, vision.hidden);
    let merged = merge(&mut body, vision, Merged::SideBySide, ValueId(0));
    let normed = norm(graph, &mut body, vision, "vision.deepstack.{layer}.norm", merged);
    let rows = project(graph, &mut body, "vision.deepstack.{layer}", normed, true);
    body.finish(rows)
}
