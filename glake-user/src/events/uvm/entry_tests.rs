//! The decoder against entries built by an encoder that knows only the offsets printed from the driver's headers.

use super::*;
use proptest::prelude::*;

/// A C structure being filled: (offset, bytes) pairs.
fn entry(layout: Layout, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut out = vec![0u8; layout.entry_size()];
    for (at, bytes) in fields {
        out[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    out
}

fn q(n: u64) -> [u8; 8] {
    n.to_ne_bytes()
}

#[test]
fn a_migration_reads_the_same_from_both_layouts_but_for_the_numa_nodes() {
    let one = entry(
        Layout::V1,
        &[
            (0, &[2, 3, 0, 1]),
            (8, &q(0x7f00_0000)),
            (16, &q(65536)),
            (24, &q(10)),
            (32, &q(20)),
            (48, &q(30)),
            (56, &q(40)),
        ],
    );
    let two = entry(
        Layout::V2,
        &[
            (0, &[2, 3]),
            (4, &0u16.to_ne_bytes()),
            (6, &1u16.to_ne_bytes()),
            (8, &1i32.to_ne_bytes()),
            (12, &(-1i32).to_ne_bytes()),
            (16, &q(0x7f00_0000)),
            (24, &q(65536)),
            (32, &q(10)),
            (40, &q(20)),
            (56, &q(30)),
            (64, &q(40)),
        ],
    );
    let want = |source_node, target_node| Entry::Migration {
        cause: Cause::Prefetch,
        source: Processor(0),
        target: Processor(1),
        source_node,
        target_node,
        address: 0x7f00_0000,
        bytes: 65536,
        begin: 10,
        end: 20,
        gpu_begin: 30,
        gpu_end: 40,
    };
    assert_eq!(decode(Layout::V1, false, &one), Ok(want(None, None)));
    assert_eq!(decode(Layout::V2, true, &two), Ok(want(Some(1), Some(-1))));
}

#[test]
fn a_move_between_host_nodes_has_the_driver_s_untranslated_cause() {
    let cause = |n: u8, target: u16| {
        let bytes = entry(Layout::V2, &[(0, &[2, n]), (6, &target.to_ne_bytes())]);
        match decode(Layout::V2, true, &bytes) {
            Ok(Entry::Migration { cause, .. }) => cause,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(cause(6, 0), Cause::User, "UVM_MIGRATE between two nodes, as recorded in the lab");
    assert_eq!(cause(0, 0), Cause::OnDemand);
    assert_eq!(cause(6, 1), Cause::Other(6), "to a GPU the cause is translated");
    assert_eq!(cause(1, 1), Cause::User);
}

#[test]
fn a_gpu_fault_has_its_access_kind_and_gpu_where_each_layout_puts_them() {
    let tail: [(usize, &[u8]); 6] = [
        (4, &7u16.to_ne_bytes()),
        (6, &9u16.to_ne_bytes()),
        (8, &q(0xdead_0000)),
        (16, &q(5)),
        (24, &q(6)),
        (32, &[51, 0, 0, 0, 1]),
    ];
    let mut one = tail.to_vec();
    one.push((0, &[3, 2, 2, 1]));
    let mut two = tail.to_vec();
    let gpu = 300u16.to_ne_bytes();
    two.push((0, &[3, 2]));
    two.push((2, &gpu));
    two.push((37, &[2]));
    let want = |gpu| Entry::GpuFault {
        gpu: Processor(gpu),
        fault_type: 2,
        access: Access::Write,
        address: 0xdead_0000,
        at: 5,
        gpu_at: 6,
        batch: 51,
        replayable: true,
        unit: 7,
        client: 9,
    };
    assert_eq!(decode(Layout::V1, false, &entry(Layout::V1, &one)), Ok(want(1)));
    assert_eq!(decode(Layout::V2, true, &entry(Layout::V2, &two)), Ok(want(300)));
}

#[test]
fn a_cpu_fault_tells_the_cpu_only_where_the_release_does() {
    let bytes = entry(
        Layout::V2,
        &[
            (0, &[1, 1]),
            (4, &5u32.to_ne_bytes()),
            (8, &q(0x1000)),
            (16, &q(77)),
            (24, &41873u32.to_ne_bytes()),
            (28, &41874u32.to_ne_bytes()),
            (32, &q(0x40_0000)),
        ],
    );
    let want = |cpu| Entry::CpuFault {
        access: Access::Read,
        address: 0x1000,
        at: 77,
        pid: 41873,
        tid: 41874,
        pc: 0x40_0000,
        cpu,
    };
    assert_eq!(decode(Layout::V2, true, &bytes), Ok(want(Some(5))));
    assert_eq!(decode(Layout::V1, false, &bytes), Ok(want(None)));
}

#[test]
fn every_other_type_reads_from_both_layouts() {
    type Fields = Vec<(usize, Vec<u8>)>;
    let cases: [(u8, Fields, Fields); 7] = [
        (4, vec![(1, vec![1]), (4, vec![8])], vec![(2, vec![1]), (4, vec![8])]),
        (6, vec![(3, vec![1]), (4, vec![4])], vec![(4, vec![1]), (3, vec![4])]),
        (7, vec![(8, vec![3]), (16, vec![9])], vec![(32, vec![3]), (8, vec![9])]),
        (10, vec![(8, vec![3]), (16, vec![9])], vec![(32, vec![3]), (8, vec![9])]),
        (11, vec![(1, vec![1])], vec![(2, vec![1])]),
        (13, vec![(1, vec![1]), (2, vec![2]), (3, vec![5])], vec![(4, vec![1]), (6, vec![2]), (1, vec![5])]),
        (14, vec![(1, vec![1]), (2, vec![2])], vec![(4, vec![1]), (6, vec![2])]),
    ];
    for (kind, one, two) in cases {
        let build = |layout, fields: &[(usize, Vec<u8>)]| {
            let mut fields: Vec<(usize, &[u8])> = fields.iter().map(|(at, b)| (*at, b.as_slice())).collect();
            let head = [kind];
            fields.push((0, &head));
            entry(layout, &fields)
        };
        let a = decode(Layout::V1, false, &build(Layout::V1, &one)).expect("known");
        let b = decode(Layout::V2, true, &build(Layout::V2, &two)).expect("known");
        assert_eq!(a, b, "type {kind}");
    }
}

#[test]
fn types_the_driver_does_not_have_are_refused_by_number() {
    let mut bytes = [0u8; 72];
    for n in [0u8, 15, 61, 64, 255] {
        bytes[0] = n;
        assert_eq!(decode(Layout::V2, true, &bytes), Err(Refused::UnknownType(n)));
    }
    assert_eq!(decode(Layout::V2, true, &bytes[..71]), Err(Refused::Short));
    bytes[0] = 62;
    assert_eq!(decode(Layout::V1, false, &bytes), Ok(Entry::Test { kind: 62 }));
}

proptest! {
    #[test]
    fn random_bytes_give_an_entry_or_a_refusal(bytes in proptest::collection::vec(any::<u8>(), 0..96), two: bool) {
        let layout = if two { Layout::V2 } else { Layout::V1 };
        match decode(layout, two, &bytes) {
            Err(Refused::Short) => prop_assert!(bytes.len() < layout.entry_size()),
            Err(Refused::UnknownType(n)) => prop_assert_eq!(n, bytes[0]),
            Ok(_) => prop_assert!((1..=14).contains(&bytes[0]) || (62..=63).contains(&bytes[0])),
        }
    }
}
