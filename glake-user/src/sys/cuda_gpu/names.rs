//! What the driver calls a GPU.

use super::CudaGpu;
use crate::error::Result;

impl CudaGpu {
    /// The GPU's name.
    pub fn name(&self) -> Result<String> {
        let mut text = [0_u8; 128];
        // SAFETY: the buffer holds 128 bytes, as the call is told; the driver ends the text with a zero.
        let code = unsafe { (self.f.device_name)(text.as_mut_ptr().cast(), 128, self.device) };
        self.check(code, || format!("naming GPU {}", self.ordinal))?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// The PCI address as sysfs spells it; `None` where the driver does not say.
    pub fn pci_address(&self) -> Option<String> {
        let mut text = [0_u8; 32];
        // SAFETY: the buffer holds 32 bytes, as the call is told; the driver ends the text with a zero.
        let code = unsafe { (self.f.device_pci)(text.as_mut_ptr().cast(), 32, self.device) };
        let end = text.iter().position(|b| *b == 0).unwrap_or(text.len());
        // Whatever spelling the driver has.
        if code == 0 { crate::pci::sysfs(&String::from_utf8_lossy(&text[..end])) } else { None }
    }
}
