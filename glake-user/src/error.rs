//! One error type: a small matchable kind, the operation with its numbers, the remedy, the cause as `source`.

use std::fmt;

/// What a caller may want to tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Input from outside is broken: a file, an option, an event.
    BadInput,
    /// The kernel or driver refused for want of a privilege.
    Denied,
    /// This kernel, driver or build cannot do it.
    Unsupported,
    /// Something that should be there is not.
    Missing,
    /// Memory, descriptors or a configured limit ran out.
    Exhausted,
    /// A deadline passed.
    TimedOut,
    /// A device or driver answered wrongly, or is gone.
    Device,
    /// A rule of the API was broken by the caller.
    Misuse,
    /// Everything else the operating system may answer.
    Io,
}

/// An error. `Display` names the operation, its numbers and the remedy, never the cause: that is `source`.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    doing: String,
    remedy: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `doing` starts in lower case and names the thing and the value: "reading /sys/block/vda/stat".
    pub fn new(kind: Kind, doing: impl Into<String>) -> Self {
        Error { kind, doing: doing.into(), remedy: None, source: None }
    }

    /// An operating-system error, its kind taken from the errno.
    pub fn os(doing: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as E;
        let kind = match source.kind() {
            E::PermissionDenied => Kind::Denied,
            E::NotFound => Kind::Missing,
            E::Unsupported => Kind::Unsupported,
            E::OutOfMemory | E::StorageFull | E::QuotaExceeded => Kind::Exhausted,
            E::TimedOut | E::WouldBlock => Kind::TimedOut,
            E::InvalidData | E::UnexpectedEof => Kind::BadInput,
            _ => Kind::Io,
        };
        let full = matches!(source.kind(), E::StorageFull | E::QuotaExceeded);
        let error = Error::new(kind, doing).because(source);
        if full { error.remedy("free space there, or choose another place") } else { error }
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The kind, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the user can do about it, where that is known.
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// The whole chain on one line, causes after colons, the remedy last.
    pub fn chain(&self) -> String {
        let mut text = self.doing.clone();
        let mut next = std::error::Error::source(self);
        while let Some(cause) = next {
            let words = cause.to_string();
            // Some causes repeat the words of their own cause.
            if !text.ends_with(&words) {
                text.push_str(": ");
                text.push_str(&words);
            }
            next = cause.source();
        }
        if let Some(remedy) = &self.remedy {
            text.push_str(" -> ");
            text.push_str(remedy);
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}
