//! What a pickle is made of while it is being read: small values, and nodes in one flat arena, so that neither
//! deep nesting nor cycles can hurt. A node that was turned into an event or a call stack is given back at once.

use std::collections::HashMap;

/// One value on the stack, in the memo or inside a node.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// Above `i64::MAX`.
    Uint(u64),
    Float(f64),
    /// An integer that fits neither, or bytes: kept as "something".
    Other,
    Str(u32),
    Node(NodeId),
    /// A trace entry, already taken out of the tree.
    Event(u32),
    /// One source line of a call stack.
    Frame(u32),
    /// A whole call stack, reduced to its call site.
    Stack(u32),
}

/// Where a node is, and which of the nodes that lived there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId {
    index: u32,
    generation: u32,
}

/// A container.
#[derive(Debug)]
pub(super) enum Node {
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
}

#[derive(Debug)]
struct Slot {
    node: Option<Node>,
    generation: u32,
    memo: Option<u32>,
}

/// Nodes and strings of one pickle.
#[derive(Debug, Default)]
pub(super) struct Heap {
    slots: Vec<Slot>,
    free: Vec<u32>,
    strings: Vec<Box<str>>,
    by_text: HashMap<Box<str>, u32>,
    held: u64,
}

impl Heap {
    /// Bytes held, about.
    pub(super) fn held(&self) -> u64 {
        self.held + (self.slots.len() * size_of::<Slot>()) as u64
    }

    pub(super) fn add(&mut self, node: Node) -> NodeId {
        self.held += weight(&node);
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.node = Some(node);
            slot.memo = None;
            return NodeId { index, generation: slot.generation };
        }
        let index = self.slots.len() as u32;
        self.slots.push(Slot { node: Some(node), generation: 0, memo: None });
        NodeId { index, generation: 0 }
    }

    pub(super) fn get(&self, id: NodeId) -> Option<&Node> {
        self.slots.get(id.index as usize).filter(|s| s.generation == id.generation)?.node.as_ref()
    }

    /// Adds to a list; `false` where the node is no list.
    pub(super) fn extend(&mut self, id: NodeId, items: &[Value]) -> bool {
        let Some(Node::List(list)) = self.get_mut(id) else { return false };
        list.extend_from_slice(items);
        self.held += size_of_val(items) as u64;
        true
    }

    /// Adds to a dict; `false` where the node is no dict.
    pub(super) fn insert(&mut self, id: NodeId, pairs: &[Value]) -> bool {
        let Some(Node::Dict(dict)) = self.get_mut(id) else { return false };
        dict.extend(pairs.chunks_exact(2).map(|p| (p[0], p[1])));
        self.held += size_of_val(pairs) as u64;
        true
    }

    fn get_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?.node.as_mut()
    }

    /// Remembers under which number the memo keeps the node.
    pub(super) fn memoized(&mut self, id: NodeId, at: u32) {
        if let Some(slot) = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation) {
            slot.memo = Some(at);
        }
    }

    /// Takes a node out for good; later uses of the same id find nothing. Also says which memo entry named it.
    pub(super) fn take(&mut self, id: NodeId) -> Option<(Node, Option<u32>)> {
        let slot = self.slots.get_mut(id.index as usize).filter(|s| s.generation == id.generation)?;
        let node = slot.node.take()?;
        let memo = slot.memo.take();
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        self.held = self.held.saturating_sub(weight(&node));
        Some((node, memo))
    }

    pub(super) fn intern(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.by_text.get(text) {
            return known;
        }
        let index = self.strings.len() as u32;
        self.strings.push(text.into());
        self.by_text.insert(text.into(), index);
        self.held += 2 * text.len() as u64 + 64;
        index
    }

    pub(super) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Str(index) => self.strings.get(index as usize).map(|s| &**s),
            _ => None,
        }
    }

    pub(super) fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Node(id) => match self.get(id)? {
                Node::List(items) => Some(items),
                Node::Dict(_) => None,
            },
            _ => None,
        }
    }

    pub(super) fn dict(&self, value: Value) -> Option<&[(Value, Value)]> {
        match value {
            Value::Node(id) => match self.get(id)? {
                Node::Dict(pairs) => Some(pairs),
                Node::List(_) => None,
            },
            _ => None,
        }
    }

    /// The value of a key in a dict; the last one where a key comes twice, as Python keeps it.
    pub(super) fn key(&self, dict: Value, key: &str) -> Option<Value> {
        self.dict(dict)?.iter().rev().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, v)| *v)
    }

    /// An unsigned number under a key.
    pub(super) fn number(&self, dict: Value, key: &str) -> Option<u64> {
        self.key(dict, key)?.as_u64()
    }
}

impl Value {
    pub(super) fn as_u64(self) -> Option<u64> {
        match self {
            Value::Int(n) => u64::try_from(n).ok(),
            Value::Uint(n) => Some(n),
            _ => None,
        }
    }

    /// What it is, for messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::Uint(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Other => "bytes or a huge integer",
            Value::Str(_) => "a string",
            Value::Node(_) => "a list or dict",
            Value::Event(_) => "a trace entry",
            Value::Frame(_) => "a stack frame",
            Value::Stack(_) => "a call stack",
        }
    }
}

fn weight(node: &Node) -> u64 {
    match node {
        Node::List(items) => size_of_val(&items[..]) as u64,
        Node::Dict(pairs) => size_of_val(&pairs[..]) as u64,
    }
}
