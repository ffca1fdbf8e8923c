use super::*;
use crate::cli::view::tests::sample;
use crate::events::recording::{Header, Writer};
use std::io::Cursor;

fn recording(seconds: impl Iterator<Item = u64>, host: &Inventory) -> Vec<u8> {
    let header = Header { host: serde_json::to_value(host).unwrap(), ..Default::default() };
    let mut w = Writer::new(Vec::new(), &header).unwrap();
    seconds.for_each(|s| w.sample(&sample(s)).unwrap());
    w.finish().unwrap()
}

fn played(bytes: Vec<u8>, from: Option<Place>) -> Played<Cursor<Vec<u8>>> {
    Played::new(Reader::new(Cursor::new(bytes)).unwrap(), from)
}

fn states(mut p: Played<Cursor<Vec<u8>>>) -> Vec<State> {
    std::iter::from_fn(|| p.next().unwrap()).collect()
}

#[test]
fn a_played_state_is_the_live_one_to_the_byte() {
    let host = Inventory { hostname: "gpu-node-17".into(), kernel: "6.12".into(), ..Default::default() };
    let mut older = Sample::default();
    let mut live = Vec::new();
    for second in 1..100 {
        let newer = sample(second);
        live.push(serde_json::to_string(&State::between(&older, &newer, &host)).unwrap());
        older = newer;
    }
    let played = states(played(recording(1..100, &host), None));
    let played: Vec<String> = played.iter().map(|s| serde_json::to_string(s).unwrap()).collect();
    assert_eq!(played, live);
}

#[test]
fn a_place_is_after_the_begin_or_on_the_clock() {
    let bytes = recording(1..100, &Inventory::default());
    let first = |place| states(played(bytes.clone(), Some(place)))[0].at;
    assert_eq!(first(Place::After(Duration::from_secs(10))), sample(11).at);
    // The first sample is at 00:53:21 UTC.
    let clock = values::place("00:53:41").unwrap();
    assert_eq!(first(clock), sample(21).at);
    assert!(
        states(played(bytes.clone(), Some(clock)))[0].interval_ns.is_some(),
        "the one before it is known"
    );
}

#[test]
fn a_place_after_the_end_is_told_with_the_end() {
    let mut p = played(recording(1..10, &Inventory::default()), Some(Place::After(Duration::from_secs(60))));
    let error = p.next().unwrap_err();
    assert!(error.chain().contains("00:53:29Z"), "{}", error.chain());
}

#[test]
fn a_clock_time_before_the_begin_is_the_next_day() {
    let begin = sample(1).at;
    let place = values::place("00:53:20").unwrap();
    assert!(before(place, begin, sample(2).at));
    let tomorrow = Stamp { realtime_ns: begin.realtime_ns + 86_399_000_000_000, ..begin };
    assert!(!before(place, begin, tomorrow));
}

#[test]
fn nothing_is_said_of_the_time_between_two_boots() {
    let mut bytes = recording(std::iter::once(50), &Inventory::default());
    let second = recording(std::iter::once(1), &Inventory::default());
    // The blocks of the second file, put behind the first.
    let block = second.windows(4).position(|w| w == b"GLkb").unwrap();
    bytes.extend(&second[block..]);
    let states = states(played(bytes, None));
    assert_eq!(states.iter().map(|s| s.interval_ns).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn an_empty_recording_ends_at_once() {
    assert!(states(played(recording(0..0, &Inventory::default()), None)).is_empty());
}

#[test]
fn waiting_follows_recorded_time_and_speed() {
    let mut pace = Pace::new(Speed::Times(1e-3));
    assert_eq!(pace.wait(5_000_000_000), Duration::ZERO, "the first comes at once");
    let wait = pace.wait(6_000_000_000);
    assert!(wait > Duration::from_secs(900) && wait <= Duration::from_secs(1000), "{wait:?}");
    assert_eq!(pace.wait(1), Duration::ZERO, "time that runs backwards waits for nothing");
    assert_eq!(Pace::new(Speed::Max).wait(u64::MAX), Duration::ZERO);
}
