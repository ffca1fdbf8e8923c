//! What is wrong on this host now, as `/api/v1/state` carries it.

use crate::clock::Stamp;
use serde::{Deserialize, Serialize};

/// One finding that holds now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its name; a label of `glake_finding_active`.
    pub rule: String,
    /// `page`, `ticket` or `info`: how soon somebody should look.
    pub severity: String,
    /// The GPU meant, where it is one.
    #[serde(rename = "UUID")]
    pub uuid: Option<String>,
    /// Its PCI address as sysfs spells it.
    pub pci: Option<String>,
    /// Since when it holds.
    pub since: Stamp,
    /// In one sentence.
    pub what: String,
    /// What was seen.
    pub evidence: Vec<String>,
    /// What to do.
    pub do_now: String,
}
