//! The flags of a peer's build, read from the help texts of its programs. Releases and forks of llama.cpp differ in them.

/// How llama-bench measures tokens that are generated after others in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DepthFlag {
    /// `-d DEPTH` next to `-n TOKENS`.
    #[default]
    Depth,
    /// `-gp DEPTH,TOKENS`, of ik_llama.cpp. Results have the depth as their prompt.
    AfterPrompt,
}

/// The flags of llama-bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BenchFlags {
    /// How depth is given.
    pub depth: DepthFlag,
    /// Whether `-rtr 1` repacks weights for the CPU while it loads them (ik_llama.cpp).
    pub repacks: bool,
}

/// The flags of llama-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerFlags {
    /// Whether `-fa` has a value. In older builds it has none and turns flash attention on.
    pub flash_attention_value: bool,
    /// Whether it has a prompt cache with a limit, `--cache-ram`.
    pub cache_ram: bool,
    /// Whether `-rtr` repacks weights for the CPU while it loads them (ik_llama.cpp).
    pub repacks: bool,
}

impl BenchFlags {
    /// The flags that a help text lists.
    #[must_use]
    pub fn of_help(help: &str) -> Self {
        let depth = match has_value(help, "-gp") && !help.contains("--n-depth") {
            true => DepthFlag::AfterPrompt,
            false => DepthFlag::Depth,
        };
        BenchFlags { depth, repacks: help.contains("--run-time-repack") }
    }
}

impl ServerFlags {
    /// The flags that a help text lists.
    #[must_use]
    pub fn of_help(help: &str) -> Self {
        ServerFlags {
            flash_attention_value: has_value(help, "--flash-attn"),
            cache_ram: help.contains("--cache-ram"),
            repacks: help.contains("--run-time-repack"),
        }
    }
}

/// Whether a placeholder for a value, such as `<n>`, `[on|off]` or `(on|off)`, follows a flag.
fn has_value(help: &str, flag: &str) -> bool {
    help.match_indices(flag).any(|(at, _)| help[at + flag.len()..].trim_start().starts_with(['<', '[', '(']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_llama_cpp_and_of_forks_is_understood() {
        let upstream =
            "  -pg <pp,tg>    (default: )\n  -d, --n-depth <n>     (default: 0)\n  -fa, --flash-attn <0|1>\n";
        assert_eq!(BenchFlags::of_help(upstream), BenchFlags { depth: DepthFlag::Depth, repacks: false });
        let ik =
            "  -pg <pp,tg>   (default: )\n  -gp <pp,tg>  (default: )\n  -rtr, --run-time-repack <0|1> (default: 0)\n";
        assert_eq!(BenchFlags::of_help(ik), BenchFlags { depth: DepthFlag::AfterPrompt, repacks: true });
        assert_eq!(BenchFlags::of_help(""), BenchFlags::default());
    }

    #[test]
    fn flash_attention_has_a_value_in_newer_servers() {
        let flags = |help: &str| ServerFlags::of_help(help).flash_attention_value;
        assert!(flags("-fa,   --flash-attn [on|off|auto]   set Flash Attention use"));
        assert!(flags("-fa, --flash-attn (auto|on|off|0|1)  set Flash Attention (default: on)"));
        assert!(!flags("-fa,   --flash-attn    enable Flash Attention (default: disabled)"));
        assert!(!flags(""));
        let ik = ServerFlags::of_help("-rtr, --run-time-repack  repack\n-cram, --cache-ram N  limit");
        assert!(ik.repacks && ik.cache_ram);
    }
}
