//! Flags made from the table of settings. A `clap` command flattens those of the sections that it uses.

use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::environment::Environment;
use super::error::{Given, Origin};
use super::settings::{Config, SETTINGS, Section, Setting};
use super::value::{Raw, ValueKind};

/// A section as a type, so that a command can name the flags that it accepts.
pub trait FlagSection {
    /// The section.
    const SECTION: Section;
    /// Whether the flags may also follow a subcommand.
    const GLOBAL: bool = false;
}

/// Declares a [`FlagSection`] for a section.
macro_rules! flag_section {
    ($($(#[doc = $doc:literal])+ $name:ident = $section:ident, global = $global:literal;)+) => { $(
        $(#[doc = $doc])+
        #[derive(Debug, Clone)]
        pub struct $name;
        impl FlagSection for $name {
            const SECTION: Section = Section::$section;
            const GLOBAL: bool = $global;
        }
    )+ };
}

flag_section! {
    /// `--ctx-size`, `--threads` …
    ModelFlags = Model, global = false;
    /// `--host`, `--port` …
    ServerFlags = Server, global = false;
    /// `--temp`, `--seed` …
    SamplingFlags = Sampling, global = false;
    /// `--offline`
    HubFlags = Hub, global = false;
    /// `--log-level` …
    OutputFlags = Output, global = true;
}

/// The flags of a section that were given.
#[derive(Debug, Clone)]
pub struct Flags<S> {
    given: Given,
    section: PhantomData<S>,
}

impl<S> Flags<S> {
    /// The values.
    #[must_use]
    pub fn given(&self) -> Given {
        self.given.clone()
    }
}

fn settings_of<S: FlagSection>() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.section == S::SECTION && setting.has_flag)
}

impl<S: FlagSection> clap::Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        // The help shows the defaults of a user without any XDG variables.
        let defaults = Config::defaults(&Environment::default().home());
        settings_of::<S>().fold(command, |command, setting| command.arg(arg(setting, &defaults, S::GLOBAL)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: FlagSection> clap::FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = settings_of::<S>()
            .filter(|setting| matches.value_source(setting.name) == Some(ValueSource::CommandLine))
            .map(|setting| (setting.name, (raw(setting, matches), Origin::Flag(setting.flag()))))
            .collect();
        Ok(Flags { given, section: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.given.extend(Self::from_arg_matches(matches)?.given);
        Ok(())
    }
}

/// The heading of expert settings of all sections.
const ADVANCED: &str = "Advanced";

fn arg(setting: &'static Setting, defaults: &Config, global: bool) -> Arg {
    let action = match setting.kind {
        ValueKind::Switch => ArgAction::SetTrue,
        ValueKind::Single => ArgAction::Set,
        ValueKind::List => ArgAction::Append,
    };
    let arg = Arg::new(setting.name)
        .long(setting.flag())
        .help(help(setting, defaults))
        .help_heading(if setting.is_advanced { ADVANCED } else { setting.section.heading() })
        .hide_short_help(setting.is_advanced)
        .global(global)
        .action(action);
    match setting.kind {
        ValueKind::Switch => arg,
        // The check of the value explains `-1` better than clap's "unexpected argument".
        _ => arg
            .value_name(setting.value_name)
            .allow_negative_numbers(true)
            .value_parser(move |text: &str| (setting.check)(&Raw::Text(text.to_owned())).map(|()| text.to_owned())),
    }
}

fn help(setting: &Setting, defaults: &Config) -> String {
    let doc = setting.doc.trim().trim_end_matches('.');
    match (setting.kind, defaults.toml_value(setting.name)) {
        (ValueKind::Single, Some(value)) => format!("{doc} [default: {}]", value.trim_matches('"')),
        _ => doc.to_owned(),
    }
}

fn raw(setting: &Setting, matches: &ArgMatches) -> Raw {
    match setting.kind {
        ValueKind::Switch => Raw::Boolean(matches.get_flag(setting.name)),
        ValueKind::Single => Raw::Text(matches.get_one::<String>(setting.name).cloned().unwrap_or_default()),
        ValueKind::List => {
            let values = matches.get_many::<String>(setting.name).unwrap_or_default();
            Raw::List(values.map(|value| Raw::Text(value.clone())).collect())
        }
    }
}
