//! The `cuelight` program; everything it does is in [`cuelight::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    cuelight::cli::main()
}
