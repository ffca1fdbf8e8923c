//! The driver binds its own functions to itself: nobody who interposes a name changes what its table hands out.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rerun-if-changed=build.rs");
}
