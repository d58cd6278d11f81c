//! The configuration: precedence of the sources, errors for wrong values, and the flags.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use cuelight::api::ServerOptions;
use cuelight::config::environment::Environment;
use cuelight::config::flags::{Flags, ModelFlags, ServeFlags};
use cuelight::config::{
    ByteSize, Config, Given, LogFormat, Origin, Raw, Resolved, SETTINGS, Section, markdown, resolve,
};
use cuelight::models::{KeepAlive, ModelsOptions};
use cuelight::pipeline::runtime::RuntimeOptions;

struct Sandbox {
    directory: tempfile::TempDir,
}

impl Sandbox {
    fn new() -> Self {
        Sandbox { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.directory.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn environment(&self, variables: &[(&str, &str)]) -> Environment {
        let home = self.directory.path().to_str().unwrap();
        [("HOME", home)].into_iter().chain(variables.iter().copied()).collect()
    }

    fn resolve(&self, file: Option<&str>, variables: &[(&str, &str)], flags: Given) -> Result<Resolved, String> {
        let file = file.map(|text| self.file(text));
        resolve(file, &self.environment(variables), flags).map_err(|error| error.to_string())
    }
}

fn flag(name: &'static str, value: &str) -> Given {
    Given::from([(name, (Raw::Text(value.into()), Origin::Flag(name.into())))])
}

fn port(file: Option<&str>, variables: &[(&str, &str)], flags: Given) -> (u16, String) {
    let config = Sandbox::new().resolve(file, variables, flags).unwrap().config;
    (config.port, config.origin("port").to_string())
}

#[test]
fn flags_win_over_the_environment_over_the_file_over_defaults() {
    let file = Some("[server]\nport = 1\n");
    let variable = [("CUELIGHT_PORT", "2")];
    assert_eq!(port(None, &[], Given::new()), (8080, "default".into()));
    let (value, origin) = port(file, &[], Given::new());
    assert_eq!(value, 1);
    assert!(origin.ends_with("config.toml:2"), "{origin}");
    assert_eq!(port(file, &variable, Given::new()), (2, "environment variable CUELIGHT_PORT".into()));
    assert_eq!(port(file, &variable, flag("port", "3")), (3, "flag --port".into()));
}

#[test]
fn the_file_in_the_users_configuration_directory_is_found() {
    let sandbox = Sandbox::new();
    let directory = sandbox.directory.path().join(".config/cuelight");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("config.toml"), "[sampling]\ntemp = 0.25\n").unwrap();
    let resolved = sandbox.resolve(None, &[], Given::new()).unwrap();
    assert_eq!(resolved.config.temp.0, 0.25);
    assert_eq!(resolved.file.unwrap(), directory.join("config.toml"));
}

#[test]
fn a_variable_names_the_file_and_a_flag_goes_before_it() {
    let sandbox = Sandbox::new();
    let named = sandbox.file("[server]\nport = 1\n");
    let environment = sandbox.environment(&[("CUELIGHT_CONFIG", named.to_str().unwrap())]);
    let resolved = resolve(None, &environment, Given::new()).unwrap();
    assert_eq!((resolved.config.port, resolved.file, resolved.warnings.len()), (1, Some(named), 0));
    let missing = resolve(Some("/no/such.toml".into()), &environment, Given::new()).unwrap_err();
    assert!(missing.to_string().contains("/no/such.toml"), "{missing}");
    let unset = sandbox.environment(&[("CUELIGHT_CONFIG", "")]);
    assert_eq!(resolve(None, &unset, Given::new()).unwrap().file, None);
}

#[test]
fn without_a_home_no_file_is_read_and_directories_belong_to_the_user() {
    let environment = Environment::default();
    let home = environment.home();
    assert_eq!(home.config("cuelight"), None);
    let config = Config::defaults(&home);
    let substitute = home.cache("").parent().unwrap().to_owned();
    for directory in [&config.cache_dir, &config.hf_home, &config.history_file] {
        assert!(directory.starts_with(&substitute), "{}", directory.display());
    }
    assert_ne!(substitute, std::env::temp_dir());
    let configured: Environment = [("XDG_CONFIG_HOME", "/settings")].into_iter().collect();
    assert_eq!(configured.home().config("cuelight").unwrap(), Path::new("/settings/cuelight"));
}

#[test]
fn every_kind_of_value_is_read_from_a_file() {
    let text = r#"
        [model]
        ctx_size = 4_096
        kv_memory = "1.5GiB"
        kv_type = "f32"
        [server]
        api_key = ["one", "two"]
        drain_timeout = "2m"
        [sampling]
        seed = 7
        [hub]
        offline = true
        [output]
        log_format = "json"
    "#;
    let config = Sandbox::new().resolve(Some(text), &[], Given::new()).unwrap().config;
    assert_eq!(config.ctx_size.unwrap().get(), 4096);
    assert_eq!(config.kv_memory, Some(ByteSize(3 << 29)));
    assert_eq!(config.api_key.0.len(), 2);
    assert_eq!(config.drain_timeout.as_secs(), 120);
    assert_eq!((config.seed, config.offline, config.log_format), (Some(7), true, LogFormat::Json));
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion_and_a_line() {
    for (text, line, suggestion) in [
        ("[server]\nprot = 1\n", 2, "server.port"),
        ("port = 1\n", 1, "server.port"),
        ("\n[sever]\nport = 1\n", 2, "server"),
        ("[model]\nmax-seqs = 4\n", 2, "model.max_seqs"),
        ("[server]\ntemp = 1\n", 2, "sampling.temp"),
    ] {
        let error = Sandbox::new().resolve(Some(text), &[], Given::new()).unwrap_err();
        assert!(error.contains(&format!("config.toml:{line}: unknown setting")), "{text}: {error}");
        assert!(error.contains(&format!("did you mean \"{suggestion}\"?")), "{text}: {error}");
    }
    let error = Sandbox::new().resolve(Some("[server]\nzzz = 1\n"), &[], Given::new()).unwrap_err();
    assert!(!error.contains("did you mean"), "{error}");
}

#[test]
fn errors_for_bad_values_name_their_source() {
    let refuse = |file, variables: &[_]| Sandbox::new().resolve(file, variables, Given::new()).unwrap_err();
    let error = refuse(None, &[("CUELIGHT_PORT", "99999")]);
    assert_eq!(
        error,
        "environment variable CUELIGHT_PORT: bad value for server.port: \"99999\" is not a whole number from 0 to 65535"
    );
    let error = refuse(Some("[sampling]\n\ntemp = -1.0\n"), &[]);
    assert!(
        error.contains("config.toml:3: bad value for sampling.temp: \"-1.0\" is not a number from 0 up"),
        "{error}"
    );
    let error = refuse(Some("[server]\nport = [1]\n"), &[]);
    assert!(error.ends_with("one value is expected, not a list"), "{error}");
    let error = refuse(Some("[server]\nport = \n"), &[]);
    assert!(error.contains("config.toml:2: this is not valid TOML"), "{error}");
    let error = refuse(None, &[("CUELIGHT_DEVICE", "cuda")]);
    assert!(error.contains("known devices: cpu, vulkan, vulkan:N"), "{error}");
}

#[test]
fn addresses_are_checked_when_they_are_read() {
    for (text, reason) in [
        ("[server]\ncors_origin = [\"*\", \"example.com\"]\n", "\"example.com\" is neither an origin"),
        ("[server]\ncors_origin = \"https://example.com/chat\"\n", "without a path"),
        ("[server]\nkv_events = \"5557\"\n", "is not an address like tcp://*:5557"),
        ("[server]\nkv_events_replay = \"tcp://host\"\n", "is not an address like tcp://*:5557"),
        ("[server]\notlp_endpoint = \"https://collector\"\n", "is not a URL like http://localhost:4318"),
        ("[hub]\nhf_endpoint = \"mirror\"\n", "is not a URL like https://example.com"),
    ] {
        let error = Sandbox::new().resolve(Some(text), &[], Given::new()).unwrap_err();
        assert!(error.contains("config.toml:2: bad value for") && error.contains(reason), "{error}");
    }
    let right = "[server]\ncors_origin = [\"*\", \"https://a.example:1\", \"chrome-extension://abc\"]\n\
                 kv_events = \"tcp://*:5557\"\notlp_endpoint = \"http://127.0.0.1:4318/v1/traces\"\n\
                 [hub]\nhf_endpoint = \"https://hub.example/mirror\"\n";
    let config = Sandbox::new().resolve(Some(right), &[], Given::new()).unwrap().config;
    assert_eq!((config.cors_origin.len(), config.hf_endpoint.unwrap().0.as_str()), (3, "https://hub.example/mirror"));
}

#[test]
fn a_file_that_was_named_must_exist() {
    let missing = Path::new("/no/such/config.toml").to_owned();
    let error = resolve(Some(missing), &Sandbox::new().environment(&[]), Given::new()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the configuration file /no/such/config.toml");
}

#[test]
fn variables_of_other_programs_are_weaker_than_our_own() {
    let config = |variables: &[_]| Sandbox::new().resolve(None, variables, Given::new()).unwrap().config;
    assert!(config(&[("HF_HUB_OFFLINE", "1")]).offline);
    assert!(!config(&[("HF_HUB_OFFLINE", "1"), ("CUELIGHT_OFFLINE", "0")]).offline);
    assert_eq!(config(&[("HF_HOME", "/models")]).hf_home, Path::new("/models"));
    assert_eq!(config(&[("XDG_CACHE_HOME", "/cache")]).hf_home, Path::new("/cache/huggingface"));
    let color = |variables| config(variables).toml_value("color").unwrap();
    assert_eq!(color(&[("NO_COLOR", "1")]), "\"never\"");
    assert_eq!(color(&[("NO_COLOR", "")]), "\"auto\"");
    assert_eq!((color(&[("TERM", "dumb")]), color(&[("TERM", "xterm")])), ("\"never\"".into(), "\"auto\"".into()));
    assert_eq!(color(&[("TERM", "dumb"), ("CUELIGHT_COLOR", "always")]), "\"always\"");
}

#[test]
fn a_flag_turns_a_switch_on_and_off() {
    let value = |words: &[&str]| {
        let command = Flags::<ModelFlags>::augment_args(Command::new("serve").arg(clap::Arg::new("model")));
        let matches = command.try_get_matches_from([&["serve"], words].concat()).map_err(|error| error.to_string())?;
        let given = Flags::<ModelFlags>::from_arg_matches(&matches).unwrap().given();
        let config = Sandbox::new().resolve(None, &[("CUELIGHT_DETERMINISTIC", "1")], given)?.config;
        Ok((config.deterministic, config.origin("deterministic").to_string()))
    };
    let flag = "flag --deterministic".to_owned();
    assert_eq!(value(&["--deterministic", "demo"]), Ok((true, flag.clone())));
    assert_eq!(value(&["--deterministic=false", "demo"]), Ok((false, flag)));
    assert_eq!(value(&[]), Ok((true, "environment variable CUELIGHT_DETERMINISTIC".to_owned())));
    let error: String = value(&["--deterministic=perhaps"]).unwrap_err();
    assert!(error.contains("\"perhaps\""), "{error}");
}

#[test]
fn a_misspelt_variable_causes_a_warning() {
    let resolved = Sandbox::new().resolve(None, &[("CUELIGHT_PROT", "1")], Given::new()).unwrap();
    assert_eq!(resolved.warnings, ["environment variable CUELIGHT_PROT sets nothing (did you mean CUELIGHT_PORT?)"]);
}

#[test]
fn the_printed_configuration_reads_back_unchanged() {
    let sandbox = Sandbox::new();
    let printed = sandbox.resolve(None, &[("CUELIGHT_SYSTEM", "a \"b\"\nc")], Given::new()).unwrap().config.to_toml();
    let again = sandbox.resolve(Some(&printed), &[], Given::new()).unwrap().config;
    let values =
        |config: &Config| -> Vec<_> { SETTINGS.iter().map(|setting| config.toml_value(setting.name)).collect() };
    let first = sandbox.resolve(None, &[("CUELIGHT_SYSTEM", "a \"b\"\nc")], Given::new()).unwrap().config;
    assert_eq!(values(&again), values(&first));
}

#[test]
fn defaults_are_printed_as_comments() {
    let printed = |variables: &[_]| Sandbox::new().resolve(None, variables, Given::new()).unwrap().config.to_toml();
    let set = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '['])).map(str::to_owned).collect()
    };
    assert_eq!(set(&printed(&[])), Vec::<String>::new());
    // A value that was set is a setting, also where it is that of the default.
    assert_eq!(set(&printed(&[("CUELIGHT_PORT", "8080")])), ["port = 8080  # environment variable CUELIGHT_PORT"]);
}

#[test]
fn secrets_are_not_printed() {
    let sandbox = Sandbox::new();
    let variables = [("HF_TOKEN", "hf_secret"), ("CUELIGHT_API_KEY", "key_secret"), ("CUELIGHT_KV_PEER_KEY", "secret")];
    let config = sandbox.resolve(None, &variables, Given::new()).unwrap().config;
    for text in [config.to_toml(), format!("{config:?}")] {
        assert!(!text.contains("secret"), "{text}");
    }
    let again = sandbox.resolve(Some(&config.to_toml()), &[], Given::new()).unwrap().config;
    assert!(again.api_key.0.is_empty() && again.hf_token.is_none() && again.kv_peer_key.is_none());
}

#[test]
fn what_stands_for_a_secret_is_no_secret() {
    for text in ["[server]\napi_key = [\"(hidden)\"]\n", "[hub]\nhf_token = \"(hidden)\"\n"] {
        let error = Sandbox::new().resolve(Some(text), &[], Given::new()).unwrap_err();
        assert!(error.contains("config.toml:2") && error.contains("write the value itself"), "{error}");
    }
}

#[test]
fn sizes_may_have_units() {
    for (text, bytes) in
        [("1024", 1024), ("2GiB", 2 << 30), ("2 gib", 2 << 30), ("1.5G", 3 << 29), ("10MB", 10_000_000)]
    {
        assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
    }
    for text in ["", "GiB", "-1", "2XB", "1e99"] {
        assert!(text.parse::<ByteSize>().is_err(), "{text}");
    }
}

#[test]
fn the_documentation_lists_every_setting() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    for section in Section::ALL {
        assert!(text.contains(&markdown(*section)), "`cuelight config --markdown` prints the right tables");
    }
}

#[test]
fn keep_alive_is_a_time_or_forever() {
    let given = |text: &str| {
        let resolved = Sandbox::new().resolve(None, &[("CUELIGHT_KEEP_ALIVE", text)], Given::new());
        resolved.map(|resolved| resolved.config.keep_alive)
    };
    let seconds = |seconds| Ok(Some(KeepAlive::For(Duration::from_secs(seconds))));
    assert_eq!((given("90"), given("10m"), given("0")), (seconds(90), seconds(600), seconds(0)));
    assert_eq!((given("forever"), given("-1")), (Ok(Some(KeepAlive::Forever)), Ok(Some(KeepAlive::Forever))));
    assert_eq!(given("auto"), Ok(None));
    assert!(given("soon").unwrap_err().contains("neither a time, like 30s or 10m, nor forever"));
}

#[test]
fn the_defaults_are_those_of_the_parts_that_use_them() {
    let config = Sandbox::new().resolve(None, &[], Given::new()).unwrap().config;
    let (server, models, runtime) = (ServerOptions::default(), ModelsOptions::default(), RuntimeOptions::default());
    assert_eq!(config.max_body_size, ByteSize(server.max_body_bytes as u64));
    assert_eq!(config.drain_timeout, server.drain_timeout);
    assert_eq!((config.load_timeout, config.max_queued_requests), (models.load_timeout, models.max_waiting_calls));
    assert_eq!(
        (config.step_timeout, config.client_stall_timeout),
        (runtime.step_timeout, runtime.client_stall_timeout)
    );
}

#[test]
fn every_setting_is_explained_in_one_sentence() {
    for setting in SETTINGS {
        let doc = setting.doc.trim();
        assert!(doc.ends_with('.') && !doc.contains(". "), "{}: {doc}", setting.name);
        assert!(doc.starts_with(|first: char| first.is_uppercase()), "{}: {doc}", setting.name);
    }
}

#[test]
fn advanced_flags_are_listed_by_the_long_help_only() {
    let command = Flags::<ServeFlags>::augment_args(Command::new("serve"));
    let (short, long) = (command.clone().render_help().to_string(), command.clone().render_long_help().to_string());
    assert!(long.contains("Advanced:") && !short.contains("Advanced:"), "{short}");
    let sections = [Section::Model, Section::Server, Section::Hub];
    for setting in SETTINGS.iter().filter(|setting| setting.has_flag && sections.contains(&setting.section)) {
        let flag = format!("--{} ", setting.flag());
        let lists = |help: &str| help.contains(&flag) || help.contains(&format!("--{}[=", setting.flag()));
        assert!(lists(&long), "{flag}");
        assert_eq!(lists(&short), !setting.is_advanced, "{flag}");
    }
    let headings = ["Server:", "Model and memory:", "Where models come from:", "Advanced:"].map(|word| long.find(word));
    assert!(headings.is_sorted() && headings[0].is_some(), "{headings:?}");
    for flag in ["--host", "--port", "--api-key", "--device", "--vram", "--ctx-size", "--max-seqs"] {
        assert!(short.contains(flag), "{flag}");
    }
}
