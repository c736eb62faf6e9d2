//! Messages as bytes.

mod calls;

use crate::hello::{Hello, Room};
use crate::message::{Done, Message, Task};
use crate::wire::{Malformed, Reader, Writer};

/// The bytes of a message.
pub fn encode(message: &Message) -> Vec<u8> {
    let mut to = Writer::default();
    match message {
        Message::Hello(hello) => {
            to.u8(0);
            write_hello(&mut to, hello);
        }
        Message::Do(task) => {
            to.u8(1);
            write_task(&mut to, task);
        }
        Message::Done(done) => {
            to.u8(2);
            write_done(&mut to, done);
        }
        Message::Progress(loaded, total) => {
            to.u8(3);
            to.u64(*loaded);
            to.u64(*total);
        }
        Message::Command(number, call) => {
            to.u8(4);
            to.u64(*number);
            calls::write_call(&mut to, call);
        }
        Message::Answer(number, answer) => {
            to.u8(5);
            to.u64(*number);
            calls::write_answer(&mut to, answer);
        }
        Message::Heartbeat => to.u8(6),
        Message::End(why) => {
            to.u8(7);
            to.option(why.as_deref(), Writer::text);
        }
    }
    to.0
}

/// The message of these bytes.
///
/// # Errors
/// When they are none. Whatever they are, no more memory is claimed than a small multiple of their length.
pub fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
    let mut from = Reader(bytes);
    let message = match from.u8()? {
        0 => Message::Hello(read_hello(&mut from)?),
        1 => Message::Do(read_task(&mut from)?),
        2 => Message::Done(read_done(&mut from)?),
        3 => Message::Progress(from.u64()?, from.u64()?),
        4 => Message::Command(from.u64()?, calls::read_call(&mut from)?),
        5 => Message::Answer(from.u64()?, calls::read_answer(&mut from)?),
        6 => Message::Heartbeat,
        7 => Message::End(from.option(Reader::text)?),
        _ => return Err("it is of no kind that is known"),
    };
    from.end()?;
    Ok(message)
}

fn write_hello(to: &mut Writer, hello: &Hello) {
    // Named one by one: a field that is added does not compile until it is sent.
    let Hello {
        plan,
        cubins,
        checkpoint,
        ranks,
        context,
        kv_format,
        block_tokens,
        block_bytes,
        state_bytes,
        blocks,
        sequences,
        snapshots,
        driver,
        nccl,
    } = hello;
    for text in [plan, cubins, checkpoint, kv_format, driver, nccl] {
        to.text(text);
    }
    to.u32(*ranks);
    for number in [context, block_tokens, block_bytes, state_bytes] {
        to.u64(*number);
    }
    for asked in [blocks, sequences, snapshots] {
        to.option(*asked, Writer::u64);
    }
}

fn read_hello(from: &mut Reader<'_>) -> Result<Hello, Malformed> {
    let (plan, cubins, checkpoint) = (from.text()?, from.text()?, from.text()?);
    let (kv_format, driver, nccl) = (from.text()?, from.text()?, from.text()?);
    Ok(Hello {
        plan,
        cubins,
        checkpoint,
        kv_format,
        driver,
        nccl,
        ranks: from.u32()?,
        context: from.u64()?,
        block_tokens: from.u64()?,
        block_bytes: from.u64()?,
        state_bytes: from.u64()?,
        blocks: from.option(Reader::u64)?,
        sequences: from.option(Reader::u64)?,
        snapshots: from.option(Reader::u64)?,
    })
}

fn write_room(to: &mut Writer, room: &Room) {
    let Room { blocks, sliding, sequences, snapshots, places, group } = *room;
    for number in [blocks, sliding, sequences, snapshots, places, group] {
        to.u64(number);
    }
}

fn read_room(from: &mut Reader<'_>) -> Result<Room, Malformed> {
    Ok(Room {
        blocks: from.u64()?,
        sliding: from.u64()?,
        sequences: from.u64()?,
        snapshots: from.u64()?,
        places: from.u64()?,
        group: from.u64()?,
    })
}

fn write_task(to: &mut Writer, task: &Task) {
    match task {
        Task::Plan => to.u8(0),
        Task::Load(room) => {
            to.u8(1);
            write_room(to, room);
        }
        Task::Identify => to.u8(2),
        Task::Join(name) => {
            to.u8(3);
            to.bytes(name);
        }
        Task::Sum => to.u8(4),
        Task::Record => to.u8(5),
        Task::Canary => to.u8(6),
        Task::Serve(room) => {
            to.u8(7);
            write_room(to, room);
        }
    }
}

fn read_task(from: &mut Reader<'_>) -> Result<Task, Malformed> {
    Ok(match from.u8()? {
        0 => Task::Plan,
        1 => Task::Load(read_room(from)?),
        2 => Task::Identify,
        3 => Task::Join(from.bytes()?),
        4 => Task::Sum,
        5 => Task::Record,
        6 => Task::Canary,
        7 => Task::Serve(read_room(from)?),
        _ => return Err("a task is none that is known"),
    })
}

fn write_done(to: &mut Writer, done: &Done) {
    match done {
        Done::Plan(room) => {
            to.u8(0);
            write_room(to, room);
        }
        Done::Load(room) => {
            to.u8(1);
            write_room(to, room);
        }
        Done::Identify(name) => {
            to.u8(2);
            to.bytes(name);
        }
        Done::Join => to.u8(3),
        Done::Sum(sum) => {
            to.u8(4);
            to.u64(*sum);
        }
        Done::Record => to.u8(5),
        Done::Canary(ids) => {
            to.u8(6);
            to.u32s(ids);
        }
    }
}

fn read_done(from: &mut Reader<'_>) -> Result<Done, Malformed> {
    Ok(match from.u8()? {
        0 => Done::Plan(read_room(from)?),
        1 => Done::Load(read_room(from)?),
        2 => Done::Identify(from.bytes()?),
        3 => Done::Join,
        4 => Done::Sum(from.u64()?),
        5 => Done::Record,
        6 => Done::Canary(from.u32s()?),
        _ => return Err("a task that is done is none that is known"),
    })
}
