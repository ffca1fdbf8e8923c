//! The `glake` binary: everything is in the library.

fn main() -> std::process::ExitCode {
    glake::cli::main()
}
