# Template of the Homebrew formula; `build.sh formula` fills it.
class Cuelight < Formula
  desc "LLM inference server, chat CLI and benchmark"
  homepage "@URL@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@URL@/cuelight-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256_AARCH64_APPLE_DARWIN@"
    end
  end
  on_linux do
    on_arm do
      url "@URL@/cuelight-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256_AARCH64_UNKNOWN_LINUX_GNU@"
    end
    on_intel do
      url "@URL@/cuelight-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256_X86_64_UNKNOWN_LINUX_GNU@"
    end
  end

  def install
    bin.install "bin/cuelight"
    man1.install Dir["share/man/man1/*"]
    bash_completion.install "share/bash-completion/completions/cuelight"
    zsh_completion.install "share/zsh/site-functions/_cuelight"
    fish_completion.install "share/fish/vendor_completions.d/cuelight.fish"
  end

  service do
    run [opt_bin/"cuelight", "serve", "demo"]
    keep_alive crashed: true
    log_path var/"log/cuelight.log"
    error_log_path var/"log/cuelight.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/cuelight --version")
  end
end
