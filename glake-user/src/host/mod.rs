//! What this machine is. Reads, never writes; the root of the file system is a parameter.
