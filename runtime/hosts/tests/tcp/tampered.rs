//! A connection that carries other messages than it was given: the process that they reach ends the world and
//! says why, and no client gets a token of them.

use crate::support::*;
use monomorph_engine::scripted::{Pipelined, Script, Small};
use monomorph_engine::{EngineError, EngineOptions, Event, Request, start};
use monomorph_hosts::{Answer, Ended, Message, RowAnswer, decode, encode};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

type Two = Pipelined<Small, 2>;

/// What happens to messages between the head and rank 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Defect {
    /// The first two commands, which are sent without waiting for an answer, come the other way round.
    Swapped,
    /// The second command does not come.
    Skipped,
    /// From the fourth answer on it sampled other ids.
    OtherIds,
}

/// What comes out for a message; `held` is what waits for the next.
fn tampered(defect: Defect, held: &mut Option<Vec<u8>>, body: Vec<u8>) -> Vec<Vec<u8>> {
    match (defect, decode(&body)) {
        (Defect::Swapped, Ok(Message::Command(1, _))) => {
            *held = Some(body);
            vec![]
        }
        (Defect::Swapped, Ok(Message::Command(2, _))) => {
            [vec![body], held.take().into_iter().collect()].concat()
        }
        (Defect::Skipped, Ok(Message::Command(2, _))) => vec![],
        (Defect::OtherIds, Ok(Message::Answer(number, Answer::Collected(rows)))) if number >= 4 => {
            let change = |row| match row {
                RowAnswer::Sampled(id) => RowAnswer::Sampled(id ^ 1),
                other => other,
            };
            let rows = rows.into_iter().map(change).collect();
            vec![encode(&Message::Answer(number, Answer::Collected(rows)))]
        }
        _ => vec![body],
    }
}

/// Carries messages on until either end closes.
fn carry(mut from: TcpStream, mut to: TcpStream, defect: Defect) {
    let mut held = None;
    let mut next = || -> std::io::Result<Vec<u8>> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        from.read_exact(&mut body)?;
        Ok(body)
    };
    while let Ok(body) = next() {
        for body in tampered(defect, &mut held, body) {
            let frame = [&(body.len() as u32).to_le_bytes(), &body[..]].concat();
            if to.write_all(&frame).is_err() {
                break;
            }
        }
    }
    // Either may have closed it before.
    let _ = to.shutdown(Shutdown::Both);
}

/// Where rank 1 dials in place of `head`.
fn wire(head: String, defect: Defect) -> String {
    let (listener, address): (TcpListener, _) = listener();
    std::thread::spawn(move || {
        let (worker, _) = listener.accept().unwrap();
        let head = TcpStream::connect(head).unwrap();
        let (back, forth) = (worker.try_clone().unwrap(), head.try_clone().unwrap());
        std::thread::spawn(move || carry(worker, forth, defect));
        carry(head, back, defect);
    });
    address
}

/// What a client gets of the first answer, and how its world ended.
fn world_with(defect: Defect) -> (Vec<u32>, String) {
    let (listener, address) = listener();
    let alone = || Alone::<Two>::new(Script::default(), 3);
    let leading = head(listener, hello(3), options(), alone());
    let dialled = [wire(address.clone(), defect), address];
    let workers: Vec<_> =
        (1..).zip(dialled).map(|(rank, at)| worker(&at, rank, hello(3), options(), alone())).collect();
    let lead = leading.join().unwrap().unwrap_or_else(|ended| panic!("{ended}"));
    let engine = start(lead, EngineOptions::new(256, 4096, 16)).unwrap();
    let (ids, end) = answer(engine.submit(Request::new(vec![5; 9], 20)).unwrap());
    let Event::Failed(EngineError::Fault(why)) = end else { panic!("{defect:?}: {end:?}") };
    for worker in &workers {
        assert!(matches!(ended(worker), Ended::Broken(_)), "{defect:?}: {why}");
    }
    (ids, why)
}

fn expected() -> Vec<u32> {
    let model = monomorph_engine::scripted::Scripted::<Two>::new(Script::default());
    answers(model, EngineOptions::new(256, 4096, 16), &[Request::new(vec![5; 9], 20)]).0.remove(0)
}

/// Planted once: a worker that does not look at the numbers of commands. Slots refuse the next row, of a slot
/// that no sequence began in; where a command is missing, of a position that is not the next.
pub fn swapped() {
    let (ids, why) = world_with(Defect::Swapped);
    assert!(why.contains("the head gives command 2, and 1 is due"), "{why}");
    assert!(ids.is_empty(), "{ids:?}");
}

pub fn skipped() {
    let (ids, why) = world_with(Defect::Skipped);
    assert!(why.contains("the head gives command 3, and 2 is due"), "{why}");
    assert!(expected().starts_with(&ids), "{ids:?}");
}

/// Planted once: a head that does not compare.
pub fn changed() {
    let (ids, why) = world_with(Defect::OtherIds);
    assert!(why.contains("rank 1 answers command ") && why.contains("otherwise than the head"), "{why}");
    assert!(ids.len() < 4 && expected().starts_with(&ids), "{ids:?}");
}
