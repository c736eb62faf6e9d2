//! Images in prompts: what is found of them again, what is never taken for another, and what is refused.

use crate::support::*;
use monomorph_cache::ImageDigest;
use monomorph_engine::scripted::images::{of_row, shifted};
use monomorph_engine::scripted::{
    GEMMA, Invariant, Pipelined, QWEN, Script, Scripted, Seeing, Shape, Small, Tight, Tokens,
};
use monomorph_engine::{
    EngineHandle, EngineOptions, PromptImage, PromptImages, Request, StartError, Stats, SubmitError, start,
};
use monomorph_model::Grid;
use std::sync::Arc;

at_both_depths!(
    second_turns_find_all_blocks_before_and_behind_an_image,
    two_images_of_one_size_are_never_taken_for_each_other,
    more_images_than_places_are_seen_in_turn,
    an_image_that_is_fed_whole_waits_for_a_step_that_it_fits,
);

/// The image of these models has 3 rows of 4 tokens, and an id that is none of text.
const IMAGE: u32 = 40;
const ROWS: usize = 3;
const COLUMNS: usize = 4;

fn engine_of<const STEPS: usize, S: Shape>() -> EngineHandle {
    let model = Scripted::<Pipelined<S, STEPS>>::new(Script::default());
    start(model, EngineOptions::new(256, 4096, 64)).unwrap()
}

fn image(number: u8, start: usize) -> PromptImage {
    PromptImage {
        digest: ImageDigest([number; 32]),
        start,
        tokens: ROWS * COLUMNS,
        grid: Grid { frames: 1, rows: ROWS, columns: COLUMNS },
        pixels: Arc::from([f32::from(number); ROWS * COLUMNS]),
    }
}

/// A prompt: `text` tokens, an image, and so on, of a model whose positions have three axes; and what the
/// model keeps of it.
fn prompt(parts: &[(usize, u8)], behind: &[u32]) -> (Request, Vec<u32>) {
    let (mut ids, mut cells, mut images) = (Vec::new(), Vec::new(), PromptImages::default());
    let mut next = 0;
    let text = |id: u32, images: &mut PromptImages, next: &mut u32, ids: &mut Vec<u32>| {
        let cell = shifted(id, *next as i32 - ids.len() as i32);
        ids.push(id);
        images.positions.push([*next; 3]);
        *next += 1;
        cell
    };
    for (count, number) in parts {
        cells.extend((0..*count).map(|at| text(100 + at as u32, &mut images, &mut next, &mut ids)));
        let one = image(*number, ids.len());
        for at in 0..ROWS * COLUMNS {
            let position = [next, next + (at / COLUMNS) as u32, next + (at % COLUMNS) as u32];
            cells.push(of_row(IMAGE, ids.len(), &one.pixels, at, position));
            ids.push(IMAGE);
            images.positions.push(position);
        }
        next += COLUMNS as u32;
        images.images.push(one);
    }
    cells.extend(behind.iter().map(|id| text(*id, &mut images, &mut next, &mut ids)));
    images.shift = next as i32 - ids.len() as i32;
    (Request { images, ..Request::new(ids, 6) }, cells)
}

/// Asks, and compares the answer with what the script says; how many tokens of the prompt were found.
fn ask(engine: &EngineHandle, (request, cells): &(Request, Vec<u32>)) -> (Vec<u32>, usize) {
    let (mut cells, mut expected) = (cells.clone(), Vec::new());
    for draw in 0..request.max_tokens as u64 {
        let id = Tokens::Hash.next(&cells, &request.sampling, draw, Small::SPEC);
        expected.push(id);
        cells.push(shifted(id, request.images.shift));
    }
    let before = engine.stats().tokens_cached;
    let generation = engine.submit(request.clone()).unwrap();
    let (ids, end) = answer(generation);
    finished(end);
    assert_eq!(
        ids,
        expected,
        "images {:?}",
        request.images.images.iter().map(|it| it.digest).collect::<Vec<_>>()
    );
    let found = engine.stats().tokens_cached;
    wait_for(engine, "its blocks", is_idle);
    (ids, (found - before) as usize)
}

fn images_of(stats: &Stats) -> (u64, u64) {
    (stats.images_seen, stats.images_found)
}

fn second_turns_find_all_blocks_before_and_behind_an_image<const STEPS: usize>() {
    let engine = engine_of::<STEPS, Seeing<Small, QWEN>>();
    // Blocks have 16 tokens: the image has 10 to 22, and the third block ends behind it.
    let first = prompt(&[(10, 1)], &[7; 28]);
    let (answer, found) = ask(&engine, &first);
    assert_eq!((found, images_of(&engine.stats())), (0, (1, 0)));
    let behind: Vec<u32> = [7; 28].into_iter().chain(answer).chain([8; 9]).collect();
    let (_, found) = ask(&engine, &prompt(&[(10, 1)], &behind));
    assert_eq!((found, images_of(&engine.stats())), (48, (1, 0)), "what lies within the prefix is not seen");
    // What ends within the image is found up to there, and its rows are still in their place.
    let (_, found) = ask(&engine, &prompt(&[(10, 1)], &[9; 5]));
    assert_eq!((found, images_of(&engine.stats())), (16, (1, 1)), "one image asked twice is seen once");
}

fn two_images_of_one_size_are_never_taken_for_each_other<const STEPS: usize>() {
    let engine = engine_of::<STEPS, Seeing<Small, QWEN>>();
    for (number, round) in [(1, 0), (2, 0), (1, 1), (2, 1)] {
        // A block of text alone before the image, which all share.
        let (_, found) = ask(&engine, &prompt(&[(20, number)], &[7; 20]));
        let shared = if round == 0 && number == 1 {
            0
        } else if round == 0 {
            16
        } else {
            48
        };
        assert_eq!(found, shared, "image {number}, round {round}");
    }
    assert_eq!(images_of(&engine.stats()), (2, 0));
    // At once: one does not wait for the other's blocks, which it could not use.
    let requests: Vec<_> = (3..=6).map(|number| prompt(&[(2, number)], &[7; 40])).collect();
    let running: Vec<_> =
        requests.iter().map(|(request, _)| engine.submit(request.clone()).unwrap()).collect();
    let answers: Vec<_> = running.into_iter().map(|it| answer(it).0).collect();
    for (request, answered) in requests.iter().zip(answers) {
        assert_eq!(ask(&engine, request).0, answered, "alone as beside others");
    }
}

fn more_images_than_places_are_seen_in_turn<const STEPS: usize>() {
    let engine = engine_of::<STEPS, Seeing<Small, QWEN>>();
    // Three places, of which others use some: an image at the start, two adjacent ones, one at the end.
    let parts: Vec<(usize, u8)> = [0, 3, 0, 30, 1, 0, 0].into_iter().zip(1..).collect();
    let requests = [prompt(&parts, &[]), prompt(&parts[2..], &[5]), prompt(&[(1, 9)], &[6])];
    let running: Vec<_> =
        requests.iter().map(|(request, _)| engine.submit(request.clone()).unwrap()).collect();
    let answers: Vec<_> = running.into_iter().map(|it| answer(it).0).collect();
    for (request, answered) in requests.iter().zip(answers) {
        assert_eq!(ask(&engine, request).0, answered, "alone as beside others");
    }
    let (seen, _) = images_of(&engine.stats());
    assert!(seen >= 8, "{seen} of eight images were seen");
}

fn an_image_that_is_fed_whole_waits_for_a_step_that_it_fits<const STEPS: usize>() {
    let engine = engine_of::<STEPS, Seeing<Tight, GEMMA>>();
    // Steps of 24 tokens: beside five others that decode 19 are left, of which an image takes 12.
    assert_eq!(engine.most_image_tokens(), 12);
    let whole = |text: usize| {
        let ids: Vec<u32> = std::iter::repeat_n(1, text).chain([IMAGE; ROWS * COLUMNS]).chain([3]).collect();
        let images = PromptImages { images: vec![image(1, text)], ..PromptImages::default() };
        Request { images, ..Request::new(ids, 20) }
    };
    let running: Vec<_> = (1..16).map(|text| engine.submit(whole(text)).unwrap()).collect();
    // The scripted model refuses a step that ends within one.
    for one in running {
        finished(answer(one).1);
    }
    let scored = Request { prompt_logprobs: Some(0), ..whole(4) };
    let refused = engine.submit(scored).unwrap_err();
    assert!(matches!(&refused, SubmitError::Image(why) if why.contains("log-probabilities")), "{refused}");
}

#[test]
fn what_does_not_suit_the_model_is_refused_by_name() {
    let text = with_blocks::<1>(256).0;
    let (request, _) = prompt(&[(2, 1)], &[3]);
    let refused = text.submit(request.clone()).unwrap_err();
    assert_eq!(refused, SubmitError::Image("this model takes no images".to_owned()));
    let seeing = engine_of::<1, Seeing<Small, QWEN>>();
    assert_eq!((text.most_image_tokens(), seeing.most_image_tokens()), (0, 12));
    let mut large = request;
    large.images.images[0].grid.rows = 4;
    let refused = seeing.submit(large).unwrap_err();
    assert_eq!(refused.to_string(), "image 1 has 16 patches, and the model takes 12 at most");
    // A step of prompts that an image does not fit.
    let mut options = EngineOptions::new(256, 4096, 64);
    options.schedule.prefill_tokens = 9;
    let narrow = start(Scripted::<Seeing<Tight, GEMMA>>::new(Script::default()), options).unwrap();
    let ids = [[1].as_slice(), &[IMAGE; 12], &[2]].concat();
    let images = PromptImages { images: vec![image(1, 1)], ..PromptImages::default() };
    let refused = narrow.submit(Request { images, ..Request::new(ids, 2) }).unwrap_err();
    let expected = "image 1 has 12 tokens, and a step of this server takes images of 9 at most";
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn models_that_cannot_be_fed_images_are_refused_at_the_start() {
    fn refused<S: Shape>() -> String {
        match start(Scripted::<S>::new(Script::default()), EngineOptions::new(256, 4096, 64)) {
            Err(StartError::Spec(why)) => why,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused::<Invariant<Seeing<Tight, GEMMA>, 8>>().contains("have to be fed together"));
}
