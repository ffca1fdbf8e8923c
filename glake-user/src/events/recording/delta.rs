//! The difference between two JSON values, small where counters rise.
//!
//! - a number `n`: add it (wrapping) to the unsigned number that was there;
//! - `[length, i, d, i, d, ...]`: an array is now `length` long, and its element `i` changes by `d`, rising `i` first;
//!   an element past the old end is given whole;
//! - `{"o": {key: d}}`: these members of an object change or are new;
//! - `{"=": value}`: replaced by `value`.
//!
//! It works on any value, so a new section of [`crate::events::sample::Sample`] needs no change here.

use serde_json::{Map, Value, json};

/// The difference that turns `old` into `new`; `None` when they are equal.
pub fn diff(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        _ if old == new => None,
        (Value::Number(a), Value::Number(b)) => match (a.as_u64(), b.as_u64()) {
            (Some(a), Some(b)) => Some(Value::from(b.wrapping_sub(a).cast_signed())),
            _ => Some(whole(new)),
        },
        (Value::Object(a), Value::Object(b)) if a.keys().all(|k| b.contains_key(k)) => {
            let changed: Map<String, Value> = b
                .iter()
                .filter_map(|(k, v)| {
                    Some((k.clone(), a.get(k).map_or_else(|| Some(whole(v)), |old| diff(old, v))?))
                })
                .collect();
            Some(json!({ "o": changed }))
        }
        (Value::Array(a), Value::Array(b)) => Some(diff_array(a, b)),
        _ => Some(whole(new)),
    }
}

fn diff_array(old: &[Value], new: &[Value]) -> Value {
    let mut out = vec![Value::from(new.len())];
    for (i, v) in new.iter().enumerate() {
        let change = old.get(i).map_or_else(|| Some(whole(v)), |old| diff(old, v));
        if let Some(change) = change {
            out.extend([Value::from(i), change]);
        }
    }
    Value::Array(out)
}

fn whole(v: &Value) -> Value {
    json!({ "=": v })
}

/// Changes `state` by `delta`. `budget` falls by the values put in and must not fall below zero.
///
/// # Errors
/// A sentence when the difference does not fit the state, or the budget is used up; `state` is then undefined.
pub fn apply(state: &mut Value, delta: Value, budget: &mut usize) -> Result<(), &'static str> {
    match delta {
        Value::Number(n) => {
            let (Some(old), Some(n)) = (state.as_u64(), n.as_i64()) else {
                return Err("a number is added to something that is none");
            };
            *state = Value::from(old.wrapping_add(n.cast_unsigned()));
            Ok(())
        }
        Value::Array(changes) => {
            let Value::Array(items) = state else {
                return Err("elements change of something that is no array");
            };
            apply_array(items, changes, budget)
        }
        Value::Object(mut kind) => match (kind.remove("="), kind.remove("o"), kind.is_empty()) {
            (Some(value), None, true) => {
                *state = charge(value, budget)?;
                Ok(())
            }
            (None, Some(Value::Object(changes)), true) => {
                let Value::Object(members) = state else {
                    return Err("members change of something that is no object");
                };
                for (key, change) in changes {
                    // A new member starts as null, so it can only be given whole.
                    apply(members.entry(key).or_insert(Value::Null), change, budget)?;
                }
                Ok(())
            }
            _ => Err("an unknown kind of difference"),
        },
        _ => Err("an unknown kind of difference"),
    }
}

fn apply_array(items: &mut Vec<Value>, changes: Vec<Value>, budget: &mut usize) -> Result<(), &'static str> {
    let mut changes = changes.into_iter();
    let length = changes.next().as_ref().and_then(Value::as_u64).ok_or("an array without a length")?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    items.truncate(length);
    while let Some(index) = changes.next() {
        let (Some(index), Some(change)) = (index.as_u64(), changes.next()) else {
            return Err("an element without an index or a difference");
        };
        match usize::try_from(index).ok().filter(|i| *i < length && *i <= items.len()) {
            Some(i) if i < items.len() => apply(&mut items[i], change, budget)?,
            Some(_) => {
                let mut new = Value::Null;
                apply(&mut new, change, budget)?;
                items.push(new);
            }
            None => return Err("an element past the end of its array"),
        }
    }
    if items.len() == length { Ok(()) } else { Err("an array shorter than it says") }
}

/// Takes the weight of `value` off the budget.
pub(super) fn charge(value: Value, budget: &mut usize) -> Result<Value, &'static str> {
    *budget = budget
        .checked_sub(weight(&value))
        .ok_or("more values than a recording may hold between keyframes")?;
    Ok(value)
}

/// The memory that `v` takes, in units of about 40 bytes; text is bounded by the length of its frame.
pub fn weight(v: &Value) -> usize {
    match v {
        Value::Array(a) => 1 + a.iter().map(weight).sum::<usize>(),
        Value::Object(o) => OBJECT + o.values().map(|v| 1 + weight(v)).sum::<usize>(),
        _ => 1,
    }
}

/// The smallest object takes a whole node of a B-tree: 11 keys and values, 632 bytes.
const OBJECT: usize = 16;

/// At least the weight of the value that `text` is, without taking memory for it.
pub(super) fn text_weight(text: &[u8]) -> usize {
    1 + text
        .iter()
        .map(|byte| match byte {
            b'{' => OBJECT + 2,
            b'[' => 2,
            b',' => 2,
            _ => 0,
        })
        .sum::<usize>()
}

/// The weight of what a difference puts in.
pub(super) fn inserted(delta: &Value) -> usize {
    match delta {
        Value::Array(changes) => changes.iter().map(inserted).sum(),
        Value::Object(kind) => match (kind.get("="), kind.get("o")) {
            (Some(value), _) => weight(value),
            (_, Some(Value::Object(changes))) => changes.values().map(inserted).sum(),
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-c=o]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                proptest::collection::btree_map("[a-c=o]", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_difference_turns_old_into_new(old in json(), new in json()) {
            let mut state = old.clone();
            if let Some(d) = diff(&old, &new) { apply(&mut state, d, &mut 10_000).unwrap(); }
            prop_assert_eq!(state, new);
        }

        #[test]
        fn the_text_never_weighs_less_than_its_value(v in json()) {
            prop_assert!(text_weight(v.to_string().as_bytes()) >= weight(&v));
        }

        #[test]
        fn the_writer_counts_what_the_reader_will_charge(old in json(), new in json()) {
            if let Some(d) = diff(&old, &new) {
                let mut budget = inserted(&d);
                prop_assert!(apply(&mut old.clone(), d, &mut budget).is_ok());
                prop_assert_eq!(budget, 0);
            }
        }

        #[test]
        fn any_difference_on_any_state_is_an_answer(old in json(), d in json()) {
            let mut state = old;
            let _ = apply(&mut state, d, &mut 10_000);
        }
    }

    #[test]
    fn a_rising_counter_costs_its_rise() {
        let d = diff(&json!({"a": [1_000_000_007u64, 5]}), &json!({"a": [1_000_000_010u64, 5]}));
        assert_eq!(d, Some(json!({"o": {"a": [2, 0, 3]}})));
    }

    #[test]
    fn an_array_cannot_grow_by_its_length_alone() {
        let mut state = json!([1]);
        assert!(apply(&mut state, json!([4_000_000_000u64]), &mut 100).is_err());
        assert!(apply(&mut json!([1]), json!([9, 8, {"=": 1}]), &mut 100).is_err());
    }

    #[test]
    fn the_budget_bounds_what_differences_put_in() {
        let mut state = json!([]);
        let mut budget = 10;
        assert!(apply(&mut state, json!([1, 0, {"=": [1, 2, 3]}]), &mut budget).is_ok());
        assert_eq!(budget, 6);
        assert!(apply(&mut state, json!([1, 0, {"=": [1, 2, 3, 4, 5, 6]}]), &mut budget).is_err());
    }
}
