//! A pickle read as data: protocols 0 to 5, one pass, nothing ever imported or called.
//!
//! The machine of the format (a stack, marks, a memo) is here; [`super::value`] holds what it builds and
//! [`super::entries`] takes trace entries and call stacks out of the tree as soon as they are complete, so that a
//! snapshot of several GB is never held whole. Opcodes: Python's `Lib/pickletools.py`.

use std::collections::HashMap;

use super::entries::Entries;
use super::input::Input;
use super::value::{Heap, Node, Value};
use crate::error::{Error, Kind, Result};

/// A string longer than this is refused: the longest in real snapshots is a call stack's file name.
const LONGEST_STRING: u64 = 16 << 20;
/// Text lines of protocol 0.
const LONGEST_LINE: u64 = 1 << 20;

/// Why reading stopped before the end of the pickle.
#[derive(Debug)]
enum Halt {
    /// The file ends in the middle.
    Truncated,
    /// More memory would be needed than allowed.
    Budget,
    Bad(Error),
}

/// How much of the file was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// The file ended early, at this byte.
    Truncated(u64),
    /// Reading stopped at this byte, for want of memory.
    OverBudget(u64),
}

impl From<std::io::Error> for Halt {
    fn from(e: std::io::Error) -> Halt {
        match e.kind() {
            std::io::ErrorKind::UnexpectedEof => Halt::Truncated,
            _ => Halt::Bad(Error::os("reading the pickle", e)),
        }
    }
}

/// The memo: numbers in sequence are dense; a file may also choose its own.
#[derive(Debug, Default)]
struct Memo {
    dense: Vec<Value>,
    sparse: HashMap<u64, Value>,
}

impl Memo {
    fn len(&self) -> usize {
        self.dense.len() + self.sparse.len()
    }

    fn set(&mut self, at: u64, value: Value) {
        let len = self.dense.len() as u64;
        if at < len {
            self.dense[at as usize] = value;
        } else if at == len {
            self.dense.push(value);
        } else {
            self.sparse.insert(at, value);
        }
    }

    fn get(&self, at: u64) -> Option<Value> {
        usize::try_from(at).ok().and_then(|i| self.dense.get(i)).or_else(|| self.sparse.get(&at)).copied()
    }
}

/// The reading machine.
pub(super) struct Reader<'a> {
    input: &'a mut Input,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: Memo,
    pub(super) heap: Heap,
    pub(super) entries: Entries,
    scratch: Vec<u8>,
    budget: u64,
    op_at: u64,
    ops: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a mut Input, budget: u64) -> Self {
        Reader {
            input,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            heap: Heap::default(),
            entries: Entries::default(),
            scratch: Vec::new(),
            budget,
            op_at: 0,
            ops: 0,
        }
    }

    /// Reads to the end, or as far as file and memory go; what is complete by then is kept.
    pub(super) fn read(&mut self) -> Result<(Value, Extent)> {
        loop {
            match self.step() {
                Ok(None) => {}
                Ok(Some(value)) => return Ok((value, Extent::Whole)),
                Err(Halt::Bad(e)) => return Err(e),
                Err(Halt::Truncated) => return Ok((self.close(), Extent::Truncated(self.input.offset()))),
                Err(Halt::Budget) => return Ok((self.close(), Extent::OverBudget(self.op_at))),
            }
        }
    }

    fn step(&mut self) -> Result<Option<Value>, Halt> {
        self.op_at = self.input.offset();
        self.ops += 1;
        if self.ops.is_multiple_of(1024) && self.held() > self.budget {
            return Err(Halt::Budget);
        }
        let op = self.input.byte()?.ok_or(Halt::Truncated)?;
        match op {
            b'.' => return self.pop().map(Some),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => self.drop_top()?,
            b'1' => drop(self.pop_mark()?),
            b'2' => {
                let top = self.pop()?;
                self.stack.extend([top, top]);
            }
            0x80 => self.protocol()?,
            // A frame only announces its length: the bytes are read one by one all the same.
            0x95 => drop(self.input.array::<8>()?),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'J' | b'K' | b'M' | b'I' | b'L' | b'F' | b'G' | 0x8a | 0x8b => self.number(op)?,
            b'S' | b'V' | b'T' | b'U' | b'X' | b'B' | b'C' | 0x8c | 0x8d | 0x8e | 0x96 => self.string(op)?,
            b'p' | b'q' | b'r' | b'g' | b'h' | b'j' | 0x94 => self.memo_op(op)?,
            b']' | b'}' | b')' | b'l' | b'd' | b't' | 0x85..=0x87 | 0x8f | 0x91 => self.build(op)?,
            b'a' | b'e' | b's' | b'u' | 0x90 => self.fill(op)?,
            _ => return Err(self.refused(op)),
        }
        Ok(None)
    }

    fn held(&self) -> u64 {
        let values = self.stack.len() + self.marks.len() + self.memo.len();
        self.heap.held() + self.entries.held() + (values * size_of::<Value>()) as u64
    }

    /// `file at byte N: problem`
    fn bad(&self, problem: impl std::fmt::Display) -> Halt {
        Halt::Bad(Error::new(Kind::BadInput, format!("byte {} of the pickle: {problem}", self.op_at)).remedy(
            "record the snapshot again with torch.cuda.memory._dump_snapshot(); a file that was edited or \
                 joined cannot be read",
        ))
    }

    fn refused(&self, op: u8) -> Halt {
        let name = match op {
            b'c' => "GLOBAL",
            0x93 => "STACK_GLOBAL",
            b'R' => "REDUCE",
            b'b' => "BUILD",
            b'i' => "INST",
            b'o' => "OBJ",
            0x81 => "NEWOBJ",
            0x92 => "NEWOBJ_EX",
            0x82 => "EXT1",
            0x83 => "EXT2",
            0x84 => "EXT4",
            b'P' => "PERSID",
            b'Q' => "BINPERSID",
            0x97 => "NEXT_BUFFER",
            0x98 => "READONLY_BUFFER",
            _ => return self.bad(format!("expected a pickle opcode, found 0x{op:02x}")),
        };
        Halt::Bad(
            Error::new(
                Kind::Denied,
                format!("byte {} of the pickle: opcode {name} would import or call Python code: refused", self.op_at),
            )
            .remedy("a torch memory snapshot holds only dicts, lists, strings and numbers; do not unpickle this file"),
        )
    }

    fn protocol(&mut self) -> Result<(), Halt> {
        let [version] = self.input.array()?;
        if version > 5 {
            return Err(self.bad(format!("pickle protocol {version}; 0 to 5 are known")));
        }
        Ok(())
    }

    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Result<Value, Halt> {
        if self.stack.len() <= self.floor() {
            return Err(self.bad("expected a value on the stack, found none"));
        }
        self.stack.pop().ok_or(Halt::Truncated)
    }

    /// POP takes a mark where one is on top.
    fn drop_top(&mut self) -> Result<(), Halt> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, Halt> {
        let Some(at) = self.marks.pop() else {
            return Err(self.bad("expected a mark on the stack, found none"));
        };
        Ok(self.stack.split_off(at))
    }

    fn number(&mut self, op: u8) -> Result<(), Halt> {
        let value = match op {
            b'J' => Value::Int(i32::from_le_bytes(self.input.array()?).into()),
            b'K' => Value::Int(self.input.array::<1>()?[0].into()),
            b'M' => Value::Int(u16::from_le_bytes(self.input.array()?).into()),
            b'G' => Value::Float(f64::from_be_bytes(self.input.array()?)),
            0x8a => {
                let len = self.input.array::<1>()?[0].into();
                self.long(len)?
            }
            0x8b => {
                let len = u32::from_le_bytes(self.input.array()?).into();
                self.long(len)?
            }
            _ => self.text_number(op)?,
        };
        self.stack.push(value);
        Ok(())
    }

    /// A little-endian two's complement integer of `len` bytes.
    fn long(&mut self, len: u64) -> Result<Value, Halt> {
        if len > LONGEST_LINE {
            return Err(self.bad(format!("an integer of {len} bytes")));
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        let read = self.input.bytes(len, &mut bytes);
        let value = match bytes.len() {
            0..=15 => {
                let sign = if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
                let mut wide = [sign; 16];
                wide[..bytes.len()].copy_from_slice(&bytes);
                integer(i128::from_le_bytes(wide))
            }
            _ => Value::Other,
        };
        self.scratch = bytes;
        read?;
        Ok(value)
    }

    fn text_number(&mut self, op: u8) -> Result<Value, Halt> {
        let line = self.line()?;
        let text = line.trim();
        let value = match (op, text) {
            // Protocol 0 writes True and False as these two integers.
            (b'I', "01") => Some(Value::Bool(true)),
            (b'I', "00") => Some(Value::Bool(false)),
            (b'F', _) => text.parse().ok().map(Value::Float),
            _ => text.trim_end_matches('L').parse::<i128>().ok().map(integer),
        };
        value.ok_or_else(|| self.bad(format!("expected a number, found {text:?}")))
    }

    fn line(&mut self) -> Result<String, Halt> {
        let mut bytes = std::mem::take(&mut self.scratch);
        let more = self.input.line(LONGEST_LINE, &mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        self.scratch = bytes;
        match more {
            Ok(true) => Ok(text),
            Ok(false) => Err(Halt::Truncated),
            Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                Err(self.bad("a text line of more than 1 MiB"))
            }
            Err(e) => Err(e.into()),
        }
    }

    fn string(&mut self, op: u8) -> Result<(), Halt> {
        let len = match op {
            b'S' | b'V' => {
                let line = self.line()?;
                let text = if op == b'S' { line.trim().trim_matches(['\'', '"']) } else { &line };
                let index = self.heap.intern(text);
                self.stack.push(Value::Str(index));
                return Ok(());
            }
            b'U' | b'C' | 0x8c => self.input.array::<1>()?[0].into(),
            b'T' | b'X' | b'B' => u32::from_le_bytes(self.input.array()?).into(),
            _ => u64::from_le_bytes(self.input.array()?),
        };
        if len > LONGEST_STRING {
            return Err(self.bad(format!("a string of {len} bytes; at most {LONGEST_STRING} are read")));
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        let read = self.input.bytes(len, &mut bytes);
        let value = match op {
            b'B' | b'C' | 0x8e | 0x96 => Value::Other,
            _ => Value::Str(self.heap.intern(&String::from_utf8_lossy(&bytes))),
        };
        self.scratch = bytes;
        read?;
        self.stack.push(value);
        Ok(())
    }

    fn memo_op(&mut self, op: u8) -> Result<(), Halt> {
        let at = match op {
            b'p' | b'g' => {
                let line = self.line()?;
                line.trim()
                    .parse()
                    .map_err(|_| self.bad(format!("expected a memo number, found {line:?}")))?
            }
            b'q' | b'h' => u64::from(self.input.array::<1>()?[0]),
            b'r' | b'j' => u64::from(u32::from_le_bytes(self.input.array()?)),
            _ => self.memo.len() as u64,
        };
        if matches!(op, b'g' | b'h' | b'j') {
            let value =
                self.memo.get(at).ok_or_else(|| self.bad(format!("memo entry {at} was never set")))?;
            self.stack.push(value);
            return Ok(());
        }
        let value = self.pop()?;
        if let (Value::Node(id), Ok(at)) = (value, u32::try_from(at)) {
            self.heap.memoized(id, at);
        }
        self.memo.set(at, value);
        self.stack.push(value);
        Ok(())
    }

    fn build(&mut self, op: u8) -> Result<(), Halt> {
        let node = match op {
            b']' | 0x8f | b')' => Node::List(Vec::new()),
            b'}' => Node::Dict(Vec::new()),
            b'l' | b't' | 0x91 => Node::List(self.pop_mark()?),
            b'd' => {
                let pairs = self.pop_mark()?;
                Node::Dict(pairs.chunks_exact(2).map(|p| (p[0], p[1])).collect())
            }
            _ => {
                let len = usize::from(op - 0x84);
                if self.stack.len() - self.floor().min(self.stack.len()) < len {
                    return Err(self.bad(format!("expected {len} values for a tuple")));
                }
                Node::List(self.stack.split_off(self.stack.len() - len))
            }
        };
        let id = self.heap.add(node);
        self.stack.push(Value::Node(id));
        Ok(())
    }

    /// Items into a list, pairs into a dict.
    fn fill(&mut self, op: u8) -> Result<(), Halt> {
        let items = match op {
            b'a' => vec![self.pop()?],
            b's' => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };
        let target = self.pop()?;
        let now = self.put_in(target, &items)?;
        self.stack.push(now);
        Ok(())
    }

    /// What the target is after the items went in: a dict with an action has become a trace entry.
    fn put_in(&mut self, target: Value, items: &[Value]) -> Result<Value, Halt> {
        if let Value::Node(id) = target
            && let Some(Node::List(_)) = self.heap.get(id)
        {
            let items: Vec<Value> = items.iter().map(|v| self.reduce(*v)).collect();
            self.heap.extend(id, &items);
            return Ok(target);
        }
        let mut items = items.to_vec();
        for pair in items.chunks_exact_mut(2) {
            if self.heap.text(pair[0]) == Some("frames") {
                pair[1] = self.call_stack(pair[1]);
            }
        }
        let Value::Node(id) = target else {
            self.entries.amend(&self.heap, target, &items);
            return Ok(target);
        };
        if !self.heap.insert(id, &items) {
            return Err(self.bad("expected a list or dict to fill, found one that was used up before"));
        }
        Ok(self.reduce(target))
    }

    /// A finished trace entry or stack frame, as such; anything else as it is.
    fn reduce(&mut self, value: Value) -> Value {
        let Value::Node(id) = value else { return value };
        let Some(reduced) = self.entries.recognize(&self.heap, value) else { return value };
        let memo = self.heap.take(id).and_then(|(_, memo)| memo);
        if let Some(at) = memo {
            self.memo.set(at.into(), reduced);
        }
        reduced
    }

    /// A list of frames becomes a call stack; the legacy `history` and anything unknown stays.
    fn call_stack(&mut self, value: Value) -> Value {
        let Value::Node(id) = value else { return value };
        let Some(reduced) = self.entries.call_stack(&self.heap, value) else { return value };
        if let Some((_, Some(at))) = self.heap.take(id) {
            self.memo.set(at.into(), reduced);
        }
        reduced
    }

    /// After an early end: closes every open list and dict, innermost first, and answers the outermost.
    fn close(&mut self) -> Value {
        while let Some(at) = self.marks.pop() {
            let at = at.min(self.stack.len());
            let items = self.stack.split_off(at);
            let floor = self.floor();
            if self.stack.len() <= floor {
                self.stack.extend(items);
                continue;
            }
            let Some(target) = self.stack.pop() else { continue };
            let now = self.close_into(target, items);
            self.stack.push(now);
        }
        let outermost = self.stack.first().copied().unwrap_or(Value::None);
        let rest = self.stack.split_off(self.stack.len().min(1));
        self.close_into(outermost, rest)
    }

    fn close_into(&mut self, target: Value, items: Vec<Value>) -> Value {
        let target_is_dict = self.heap.dict(target).is_some();
        let items = if target_is_dict { self.pairs(items) } else { self.nest(items) };
        self.put_in(target, &items).unwrap_or(target)
    }

    /// Keys and values of an unfinished dict. A value where a key should be belongs into the value before it: lists
    /// of one item are filled without a mark.
    fn pairs(&mut self, items: Vec<Value>) -> Vec<Value> {
        let mut pairs: Vec<Value> = Vec::new();
        for item in items {
            if pairs.len().is_multiple_of(2) && self.heap.text(item).is_none() {
                if let Some(Value::Node(id)) = pairs.last().copied() {
                    self.heap.extend(id, &[item]);
                }
            } else {
                pairs.push(item);
            }
        }
        pairs.truncate(pairs.len() / 2 * 2);
        pairs
    }

    /// Items of an unfinished list; entries that come directly after a list belong into it.
    fn nest(&mut self, items: Vec<Value>) -> Vec<Value> {
        let mut out: Vec<Value> = Vec::new();
        for item in items {
            match (out.last().copied(), item) {
                (Some(Value::Node(id)), Value::Event(_)) if self.heap.extend(id, &[item]) => {}
                _ => out.push(item),
            }
        }
        out
    }
}

fn integer(n: i128) -> Value {
    i64::try_from(n).map(Value::Int).or_else(|_| u64::try_from(n).map(Value::Uint)).unwrap_or(Value::Other)
}
