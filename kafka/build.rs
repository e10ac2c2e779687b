//! Refuses a build in which librdkafka would not report that all brokers are down. See `.cargo/config.toml`.

const FLAGS: [&str; 2] = ["-DHAVE_ATOMICS_32_ATOMIC=1", "-DHAVE_ATOMICS_64_ATOMIC=1"];

fn main() {
    println!("cargo:rerun-if-env-changed=CFLAGS");
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var("CFLAGS").unwrap_or_default();
    let is_needed = std::env::var_os("CARGO_FEATURE_OIDC").is_some();
    if is_needed && FLAGS.iter().any(|flag| !given.split_whitespace().any(|word| word == *flag)) {
        let flags = FLAGS.join(" ");
        panic!(
            "the feature oidc needs CFLAGS=\"{flags}\" (and your own flags): librdkafka's build with CMake omits them"
        );
    }
}
