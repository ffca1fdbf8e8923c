//! PCI addresses. sysfs, the GPU driver's log and DCGM each spell them their own way.

/// DCGM's spelling of a PCI address, the one that `pci_bus_id` of a GPU carries: eight digits of domain, upper case
/// (`00000000:3B:00.0`). Takes sysfs's `0000:3b:00.0` and the driver's `PCI:0000:3b:00` (function 0 then).
/// `None`: this is no PCI address.
pub fn dcgm(address: &str) -> Option<String> {
    let (domain, bus, device, function) = parse(address)?;
    Some(format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}"))
}

/// sysfs's spelling of a PCI address: `0000:3b:00.0`.
pub fn sysfs(address: &str) -> Option<String> {
    let (domain, bus, device, function) = parse(address)?;
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

fn parse(address: &str) -> Option<(u32, u8, u8, u8)> {
    let address = address.strip_prefix("PCI:").unwrap_or(address);
    let (head, function) = match address.rsplit_once('.') {
        Some((head, f)) => (head, hex(f, 1)?),
        None => (address, 0),
    };
    let mut parts = head.split(':');
    let (domain, bus, device) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let (bus, device) = (u8::try_from(hex(bus, 2)?).ok()?, u8::try_from(hex(device, 2)?).ok()?);
    // PCI: five bits of device, three of function.
    let function = u8::try_from(function).ok()?;
    (device < 32 && function < 8).then_some((hex(domain, 8)?, bus, device, function))
}

fn hex(text: &str, most: usize) -> Option<u32> {
    let plain = !text.is_empty() && text.len() <= most && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_becomes_the_one_that_dcgm_prints() {
        for text in ["0000:3b:00.0", "PCI:0000:3b:00", "00000000:3B:00.0", "PCI:0000:3b:00.0"] {
            assert_eq!(dcgm(text).as_deref(), Some("00000000:3B:00.0"), "{text}");
            assert_eq!(sysfs(text).as_deref(), Some("0000:3b:00.0"), "{text}");
        }
        assert_eq!(sysfs("10000:e1:00.0").as_deref(), Some("10000:e1:00.0"), "a VMD domain has five digits");
    }

    #[test]
    fn what_is_no_address_is_not_guessed() {
        for text in
            ["", "vda", "0000:3b", "0000:3b:20.0", "0000:3b:00.8", "0000:3b:00:1.0", "0000:+b:00.0", "nvme0"]
        {
            assert_eq!(dcgm(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn spelling_twice_changes_nothing(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let once = dcgm(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function}")).unwrap();
            proptest::prop_assert_eq!(dcgm(&once), Some(once.clone()));
            proptest::prop_assert_eq!(dcgm(&sysfs(&once).unwrap()), Some(once));
        }

        #[test]
        fn any_text_is_taken_without_a_panic(text: String) { let _ = dcgm(&text); }
    }
}
