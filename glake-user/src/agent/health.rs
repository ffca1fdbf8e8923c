//! The probes, and beside them GPU health from NVML where it is wanted.

use super::config::Nvml;
use crate::{
    clock::{Clock, SystemClock},
    error::Result,
    events::{
        event::Event,
        nvml::{Reader, Settings, not_wanted},
        sample::Sample,
        source::Source,
    },
};

/// A source with NVML's answers added to its readings.
pub(super) struct WithHealth {
    probes: Box<dyn Source>,
    wanted: Option<Settings>,
    /// Started with the first reading: by then the agent has dropped its privileges, and so has the thread.
    reader: Option<Reader>,
}

impl WithHealth {
    pub(super) fn of(probes: Box<dyn Source>, config: &Nvml) -> WithHealth {
        WithHealth { probes, wanted: settings(config), reader: None }
    }
}

/// What the configuration asks for. `None`: nothing.
pub fn settings(config: &Nvml) -> Option<Settings> {
    config.enabled.then(|| Settings {
        library: config.library.clone().into(),
        interval: config.interval,
        timeout: config.timeout,
    })
}

impl Source for WithHealth {
    fn sample(&mut self) -> Result<Sample> {
        let mut sample = self.probes.sample()?;
        let Some(wanted) = &self.wanted else {
            sample.probes.push(not_wanted());
            return Ok(sample);
        };
        let reader = self.reader.get_or_insert_with(|| Reader::start(wanted.clone()));
        let nvml = reader.look(SystemClock.now());
        sample.probes.push(nvml.probe());
        sample.nvml = Some(nvml);
        Ok(sample)
    }

    fn events(&mut self) -> Result<Vec<Event>> {
        self.probes.events()
    }

    fn set_full(&mut self, full: bool) -> Result<()> {
        self.probes.set_full(full)
    }
}
