//! Which way each part goes: over the GPU's own link, or over a peer's. Decided part by part, by where it would be through first:
//! so a link that is busy with something else gets less, and at the end nobody waits for a slow one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::relay::{Relay, Relayed};
use crate::error::{Error, Result};
use crate::gpu::{Device, InFlight, Piece, Refused, Stream};
use crate::sys::buffer::Part;

/// The ways of one job.
#[derive(Debug)]
pub(super) struct Paths {
    relays: Vec<Arc<Relay>>,
    /// Of the GPU's own link, then of each relay.
    loads: Vec<Load>,
    begun: Instant,
}

/// What is on a way, and how fast it was so far.
#[derive(Debug, Default)]
struct Load {
    queued: AtomicU64,
    landed: AtomicU64,
    /// Nanoseconds, from the job's begin to this way's first part.
    first: AtomicU64,
}

/// A part under way.
#[derive(Debug)]
pub(super) struct Sent {
    on: On,
    bytes: u64,
}

#[derive(Debug)]
enum On {
    Own(InFlight),
    Over(usize, Relayed),
}

impl Sent {
    /// Bytes of the job in it.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// To the GPU or from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Toward {
    Gpu,
    Host,
}

impl Load {
    /// Nanoseconds a byte took so far; `None` before anything came through.
    fn pace(&self, now: u64) -> Option<f64> {
        let landed = self.landed.load(Ordering::Relaxed);
        let busy = now.saturating_sub(self.first.load(Ordering::Relaxed));
        (landed > 0).then(|| busy as f64 / landed as f64)
    }

    fn sent(&self, bytes: u64, now: u64) {
        let before = self.queued.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 && self.landed.load(Ordering::Relaxed) == 0 {
            self.first.store(now, Ordering::Relaxed);
        }
    }

    fn through(&self, bytes: u64) {
        self.queued.fetch_sub(bytes, Ordering::Relaxed);
        self.landed.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Paths {
    pub(super) fn new(relays: Vec<Arc<Relay>>) -> Paths {
        let loads = (0..=relays.len()).map(|_| Load::default()).collect();
        Paths { relays, loads, begun: Instant::now() }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Bytes that came over relays.
    pub(super) fn relayed(&self) -> u64 {
        self.loads[1..].iter().map(|l| l.landed.load(Ordering::Relaxed)).sum()
    }

    /// The relay that a part should take; `None`: the GPU's own link. `size`: bytes of the part up to its last piece.
    fn choose(&self, size: usize, bytes: u64) -> Option<usize> {
        let now = self.now();
        // What is not known yet is taken to be like the GPU's own link.
        let own = self.loads[0].pace(now);
        let through = |load: &Load| {
            let queued = load.queued.load(Ordering::Relaxed) + bytes;
            queued as f64 * load.pace(now).or(own).unwrap_or(1.0)
        };
        let free = self.relays.iter().enumerate().filter(|(_, relay)| relay.is_free(size));
        let times = free.map(|(index, _)| (index, through(&self.loads[index + 1])));
        let best = times.min_by(|a, b| a.1.total_cmp(&b.1));
        best.filter(|(_, time)| *time < through(&self.loads[0])).map(|(index, _)| index)
    }

    /// Begins to copy pieces between a part and the GPU. A relay that refuses is passed over.
    pub(super) fn send(
        &self,
        device: &dyn Device,
        stream: Stream,
        part: Part,
        pieces: &[Piece],
        toward: Toward,
    ) -> Result<Sent, Refused> {
        let bytes = pieces.iter().map(|p| p.size as u64).sum();
        let size = pieces.iter().map(|p| p.at + p.size).max().unwrap_or(0);
        let mut part = part;
        if let Some(index) = self.choose(size, bytes) {
            let relay = &self.relays[index];
            let begun = match toward {
                Toward::Gpu => relay.upload(part, pieces),
                Toward::Host => relay.download(part, pieces),
            };
            match begun {
                Ok(relayed) => {
                    self.loads[index + 1].sent(bytes, self.now());
                    return Ok(Sent { on: On::Over(index, relayed), bytes });
                }
                Err(Refused { part: Some(back), .. }) => part = back,
                Err(refused) => return Err(refused),
            }
        }
        let flight = match toward {
            Toward::Gpu => device.upload(stream, part, pieces)?,
            Toward::Host => device.download(stream, part, pieces)?,
        };
        self.loads[0].sent(bytes, self.now());
        Ok(Sent { on: On::Own(flight), bytes })
    }

    /// Whether a part is through. Does not wait.
    pub(super) fn is_done(&self, device: &dyn Device, sent: &Sent) -> Result<bool> {
        match &sent.on {
            On::Own(flight) => device.is_done(flight.event()),
            On::Over(index, relayed) => self.relays[*index].is_done(relayed),
        }
    }

    /// Waits until a part is through, and gives it back.
    pub(super) fn land(&self, device: &dyn Device, sent: Sent, timeout_ns: u64) -> Result<Part> {
        let (index, part) = match sent.on {
            On::Own(flight) => (0, device.collect(flight, timeout_ns).map_err(|late| late.error)?),
            On::Over(index, relayed) => {
                let doing =
                    || format!("copying over GPU {}, which relays", self.relays[index].device().ordinal());
                let landed = self.relays[index].land(relayed, timeout_ns);
                (index + 1, landed.map_err(|e| Error::new(e.kind(), doing()).because(e))?)
            }
        };
        self.loads[index].through(sent.bytes);
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{Ring, room::Room};
    use crate::standin::gpu::{HostGpu, Settings};

    const PART: usize = 65_536;

    #[test]
    fn a_part_takes_the_way_that_is_through_first_and_comes_back_the_same_from_either() {
        let made = HostGpu::peers(&[Settings::default(); 2]).unwrap();
        let gpus: Vec<Arc<dyn Device>> = made.into_iter().map(|g| Arc::new(g) as Arc<dyn Device>).collect();
        let relay = Relay::new(Arc::clone(&gpus[1]), &*gpus[0], 1, PART).unwrap();
        let relay = Arc::new(relay);
        let room = Room::new(&gpus[0], 8 * PART as u64).unwrap();
        let ring = Ring::new(&*gpus[0], 3, PART, None).unwrap();
        let stream = gpus[0].create_stream().unwrap();
        let bytes: Vec<u8> = (0..PART).map(|i| (i * 31 % 251) as u8).collect();
        for toward in [Toward::Gpu, Toward::Host] {
            let paths = Paths::new(vec![Arc::clone(&relay)]);
            let mut sent = Vec::new();
            for (i, mut part) in (0_u64..).zip(ring.lend(3).unwrap()) {
                if toward == Toward::Gpu {
                    part.put(0, &bytes).unwrap();
                } else {
                    part.put(0, &vec![0; PART]).unwrap();
                }
                let piece = Piece { at: 0, size: PART, address: room.address() + i * PART as u64 };
                sent.push(paths.send(&*gpus[0], stream, part, &[piece], toward).unwrap());
            }
            // The own link, the relay while that is busy, and with its one slot taken the own link again.
            let over = |s: &Sent| matches!(s.on, On::Over(..));
            assert_eq!(sent.iter().map(over).collect::<Vec<_>>(), [false, true, false], "{toward:?}");
            let land = |s| paths.land(&*gpus[0], s, 1_000_000_000).unwrap();
            let parts: Vec<Part> = sent.into_iter().map(land).collect();
            for part in &parts {
                let mut there = vec![0; PART];
                part.get(0, &mut there).unwrap();
                assert!(there == bytes, "{toward:?}");
            }
            ring.give(parts, 0);
            assert_eq!(paths.relayed(), PART as u64);
        }
        gpus[0].destroy_stream(stream).unwrap();
    }

    #[test]
    fn a_way_that_was_slow_so_far_gets_less() {
        let load = Load::default();
        assert_eq!(load.pace(10), None, "nothing is known of it");
        load.sent(100, 50);
        load.through(100);
        assert_eq!(load.pace(250), Some(2.0), "nanoseconds a byte, from its first part on");
        load.sent(100, 300);
        assert_eq!(load.pace(250), Some(2.0), "a later part begins nothing anew");
    }
}
